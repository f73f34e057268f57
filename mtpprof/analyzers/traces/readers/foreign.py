"""Formats that are known and not read: what a file is, and what its tool exports that mtpprof reads.

The decision: a file is named by what it holds, and only where its first bytes say nothing by its name. Nothing is guessed of what ran.
`FOREIGN` is the registry: to name one more format is to add a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mtpprof.analyzers.traces.readers.codecs import plain_name

_UNPACK = "unpack it and give what is in it"
_NSYS = "convert it with nsys export --type sqlite"
_KINETO = "capture with torch.profiler, whose JSON mtpprof reads"
_ROCPROF = "let rocprofv3 write --output-format rocpd or json, which mtpprof reads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """One such format."""

    what: str
    """Goes on after `is`."""
    advice: str
    starts: str = ""
    """A regular expression that the first bytes of the text match; empty: they say nothing."""
    suffixes: tuple[str, ...] = ()
    """Asked only where no reader recognises the text."""


FOREIGN = (
    Foreign(what="a zip archive", advice=_UNPACK, starts=r"PK(?:\x03\x04|\x05\x06|\x07\x08)"),
    Foreign(
        what="an lz4 file",
        advice="unpack it with lz4 -d",
        starts=r"(?:\x04\x22|\x02\x21)\x4d\x18|\x02\x21\x4c\x18",
    ),
    Foreign(what="a 7-Zip archive", advice=_UNPACK, starts=r"7z\xbc\xaf\x27\x1c"),
    Foreign(what="a snappy file", advice=_UNPACK, starts=r"\xff\x06\x00\x00sNaPpY"),
    Foreign(what="a tar archive", advice=_UNPACK, starts=r"[^\0]{1,100}\0[\s\S]{156,256}?ustar"),
    Foreign(
        what="a Git LFS pointer, not the file itself",
        advice="fetch the file with git lfs pull",
        starts=r"version https://git-lfs\.github\.com/spec/",
    ),
    Foreign(
        what="a git-annex pointer, not the file itself",
        advice="fetch the file with git annex get",
        starts=r"/annex/objects/",
    ),
    Foreign(
        what="a web page, as a server gives in place of a file",
        advice="download the file itself; the address may need a login",
        starts=r"(?i)\s*<(?:!doctype html|html)\b",
    ),
    Foreign(
        what="a table of rocprofv3 in CSV",
        advice=_ROCPROF,
        starts=r'(?:"Guid",)?"?Kind"?,"?(?:Agent_Id|Domain|Stream_Id|Function|Operation|Direction)"?,',
    ),
    Foreign(
        what="a table of rocprof (version 1 or 2) in CSV",
        advice=_ROCPROF,
        starts=r'"?(?:Index|Dispatch_ID)"?,"?(?:KernelName|gpu-id|GPU_ID)"?,',
    ),
    Foreign(
        what="a summary of nsys stats in CSV",
        advice="give the .sqlite file of nsys export itself",
        starts=r'(?:\s*Processing \[|"?Time \(%\)"?,|"?Start \(ns\)"?,)',
    ),
    Foreign(
        what="a log of nvprof",
        advice="nvprof writes nothing that mtpprof reads; capture with nsys profile and " + _NSYS,
        starts=r"==\d+== (?:NVPROF|Profiling)",
    ),
    Foreign(
        what="a debug log of NCCL, which tells no times",
        advice="capture with torch.profiler, or with NCCL's profiler plugin (NCCL_PROFILER_PLUGIN), which mtpprof reads",
        starts=r"[^\n]{0,200}\bNCCL (?:INFO|WARN|TRACE|version)\b",
    ),
    Foreign(
        what="a profile of Triton's Proton, a tree of sums without a timeline",
        advice=_KINETO,
        starts=r'\s*\[\s*\{\s*"(?:children|frame|metrics)"\s*:',
    ),
    Foreign(
        what="a speedscope profile of call stacks",
        advice=_KINETO,
        starts=r'\s*\{[\s\S]{0,400}?"https://www\.speedscope\.app/file-format-schema\.json"',
    ),
    Foreign(
        what="a file of OpenTelemetry spans",
        advice=_KINETO,
        starts=r'\s*\{\s*"resourceSpans"\s*:',
    ),
    Foreign(
        what="JSON lines as nsys export --type jsonlines writes them",
        advice="export it with nsys export --type sqlite",
        starts=r'\s*\{\s*"(?:NvtxEvent|CudaEvent|Type|ANALYSIS_DETAILS|StringIds|TARGET_INFO_\w+|CUPTI_ACTIVITY_KIND_\w+)"\s*:',
    ),
    Foreign(
        what="a Parquet file, as nsys export --type parquetdir writes",
        advice="export it with nsys export --type sqlite",
        starts=r"PAR1",
    ),
    Foreign(
        what="an HDF5 file, as nsys export --type hdf writes",
        advice="export it with nsys export --type sqlite",
        starts=r"\x89HDF\r\n",
    ),
    Foreign(
        what="an Arrow file, as nsys export --type arrow writes",
        advice="export it with nsys export --type sqlite",
        starts=r"ARROW1",
    ),
    Foreign(
        what="a recording of Linux perf, which sees no device",
        advice=_KINETO,
        starts=r"PERFILE2",
    ),
    Foreign(
        what="a report of Nsight Compute, which measures single kernels and has no timeline",
        advice="capture with nsys profile and " + _NSYS,
        starts=r"NVR\0",
        suffixes=(".ncu-rep", ".ncu-repz"),
    ),
    Foreign(
        what="a raw report of Nsight Systems",
        advice=_NSYS,
        suffixes=(".nsys-rep", ".qdrep", ".qdstrm"),
    ),
    Foreign(
        what="a profile of XLA (XSpace protobuf)",
        advice="jax.profiler.trace(..., create_perfetto_trace=True) writes perfetto_trace.json.gz, which mtpprof reads",
        suffixes=(".xplane.pb",),
    ),
    Foreign(
        what="an execution trace in Chakra's protobuf",
        advice="give the JSON that torch.profiler.ExecutionTraceObserver wrote and that it was converted from",
        suffixes=(".et",),
    ),
    Foreign(
        what="a recording of the AWS Neuron profiler",
        advice="none of its exports is read yet",
        suffixes=(".ntff", ".neff"),
    ),
    Foreign(
        what="a recording of the Intel Gaudi profiler",
        advice=_KINETO,
        suffixes=(".hltv",),
    ),
)
DATABASES = (
    Foreign(
        what="a database of nvprof",
        advice="nvprof's databases are not read; capture with nsys profile and " + _NSYS,
        starts=r"CUPTI_ACTIVITY_KIND_(?:CONCURRENT_KERNEL|DRIVER)|StringTable",
    ),
    Foreign(
        what="a database of the Ascend profiler",
        advice="give the trace_view.json beside it, which torch_npu.profiler exports",
        starts=r"CANN_API|COMMUNICATION_OP|COMMUNICATION_TASK_INFO|TASK_PMU_INFO",
    ),
    Foreign(
        what="a database of the Intel VTune profiler",
        advice=_KINETO,
        starts=r"dd_\w+",
    ),
)
"""SQLite databases: `starts` is matched against the names of their tables."""
_STARTS = tuple(
    (re.compile(item.starts.encode("latin-1", "strict")), item) for item in FOREIGN if item.starts
)


def by_content(head: bytes) -> Foreign | None:
    """The format of a file with these first bytes (of its text); None: none of these."""
    return next((item for pattern, item in _STARTS if pattern.match(head)), None)


def by_tables(tables: Iterable[str]) -> Foreign | None:
    """The format of a database with these tables; None: none of these."""
    names = list(tables)
    return next((item for item in DATABASES if any(re.fullmatch(item.starts, name) for name in names)), None)


def by_name(name: str) -> Foreign | None:
    """The format that a file's name says; None: none of these."""
    plain = plain_name(name)
    return next((item for item in FOREIGN if plain.endswith(item.suffixes or "\0")), None)
