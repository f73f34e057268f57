"""Formats that are known and not read: each is named by what it holds, with the way to one that is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtpprof.analyzers.traces.discover import discover, examine_traces
from mtpprof.analyzers.traces.formats import reader_for
from mtpprof.analyzers.traces.readers.base import TraceFormatError
from mtpprof.analyzers.traces.readers.foreign import FOREIGN
from mtpprof.analyzers.traces.verdicts import Verdict
from mtpprof.errors import InputError
from tests.unit.analyzers.chrome import kernel, text

STARTS = [
    (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 12\n",
        "Git LFS pointer",
        "git lfs pull",
    ),
    (b"/annex/objects/SHA256E-s1--00.json\n", "git-annex pointer", "git annex get"),
    (b"\n<!DOCTYPE html><html><body>Sign in</body></html>", "web page", "download"),
    (b'"Kind","Agent_Id","Queue_Id","Stream_Id"\n', "rocprofv3 in CSV", "rocpd or json"),
    (b'"Guid","Kind","Agent_Id","Queue_Id"\n', "rocprofv3 in CSV", "rocpd or json"),
    (b"Index,KernelName,gpu-id,queue-id\n", "rocprof (version 1 or 2)", "rocpd or json"),
    (b"Time (%),Total Time (ns),Instances\n", "nsys stats", ".sqlite"),
    (b"==1234== NVPROF is profiling process 1234\n", "nvprof", "nsys profile"),
    (b"node1:12:34 [0] NCCL INFO Bootstrap : Using eth0\n", "debug log of NCCL", "torch.profiler"),
    (b"NCCL version 2.27.3+cuda12.9\n", "debug log of NCCL", "torch.profiler"),
    (b'[{"children": [], "frame": {"name": "ROOT"}, "metrics": {}}]', "Proton", "torch.profiler"),
    (
        b'{"$schema":"https://www.speedscope.app/file-format-schema.json","shared":{}}',
        "speedscope",
        "torch.profiler",
    ),
    (b'{"resourceSpans":[]}', "OpenTelemetry", "torch.profiler"),
    (b'{"NvtxEvent":{"Type":59}}\n', "jsonlines", "--type sqlite"),
    (b"PAR1" + bytes(40), "Parquet", "--type sqlite"),
    (b"\x89HDF\r\n\x1a\n", "HDF5", "--type sqlite"),
    (b"PERFILE2" + bytes(40), "Linux perf", "torch.profiler"),
    (b"7z\xbc\xaf\x27\x1c" + bytes(30), "7-Zip", "unpack"),
    (b"rank0.json\0" + bytes(246) + b"ustar\x0000", "tar archive", "unpack"),
]


@pytest.mark.parametrize(("content", "said", "advice"), STARTS)
@pytest.mark.parametrize("name", ["rank0.json", "trace.bin"])
def test_each_is_named_by_what_it_holds(
    tmp_path: Path, content: bytes, said: str, advice: str, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TraceFormatError) as caught:
        reader_for(path)
    assert caught.value.verdict is Verdict.OTHER_FORMAT
    assert said in caught.value.reason
    assert advice in caught.value.advice
    assert str(caught.value) == f"{path}: {caught.value.reason}; {caught.value.advice}."
    (traces,) = examine_traces([path])
    (problem,) = traces.problems
    assert (problem.sentence, problem.remedy) == (f"{path}: {caught.value.reason}.", caught.value.advice)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("report1.nsys-rep", "raw report of Nsight Systems"),
        ("report1.ncu-rep", "Nsight Compute"),
        ("host.xplane.pb", "XLA"),
        ("rank0.et", "Chakra"),
        ("profile.ntff", "Neuron"),
    ],
)
def test_each_is_named_by_its_name_where_it_holds_nothing_known(tmp_path: Path, name: str, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\x99\x01\x02" * 2000)
    with pytest.raises(TraceFormatError, match=said):
        reader_for(path)
    with pytest.raises(InputError, match=f"no trace found there .*{said}"):
        discover([tmp_path])


def test_a_trace_of_such_a_name_is_read_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "rank0.et"
    path.write_text(text([kernel("k", 1.0)]))
    assert reader_for(path).name == "kineto"


def test_json_of_another_kind_is_named_by_its_first_key(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text('{"stackFrames": {}, "samples": []}')
    with pytest.raises(InputError, match='without a traceEvents list; its first key is "stackFrames"'):
        discover([tmp_path])


def test_every_row_says_what_to_do() -> None:
    assert all(item.what and item.advice and (item.starts or item.suffixes) for item in FOREIGN)
    assert len({item.what for item in FOREIGN}) == len(FOREIGN)
