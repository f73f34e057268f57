"""The real traces against what an independent reading found in them."""

from __future__ import annotations

import functools
import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtpprof.analyzers.traces.formats import read_file
from mtpprof.analyzers.traces.table import Category
from mtpprof.analyzers.traces.verdicts import Verdict
from tests.traces import FOLDER, golden, json_traces, needs_traces
from tests.unit.analyzers.chrome import read_one

pytestmark = needs_traces

GOLDEN = golden()
read_once = functools.cache(read_one)


@pytest.mark.parametrize("name", sorted(name for name in GOLDEN if ".json" in name))
def test_events_kernels_rank_and_world(name: str) -> None:
    expected = GOLDEN[name]
    table = read_once(FOLDER / name)
    assert table.meta.events_total == expected["events"]
    assert table.count(Category.KERNEL) == expected["kernels"]
    assert table.meta.rank == expected["rank"]
    assert table.meta.world_size == expected["world_size"]


def parsed(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    # Decimal, because rounding a time in float64 microseconds to nanoseconds is off by one here and there.
    values = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw, parse_float=Decimal)
    events: list[dict[str, Any]] = values["traceEvents"]
    return events


@pytest.mark.parametrize(
    "name",
    [
        "megatron-tp2-v100/9c44bd29b3f0_1376.1724066820237002797.pt.trace.json",
        "nanogpt-8xh100-ranks0-3/Baseline - 12-11 - e049e-rank0-chrome-trace.json.gz",
        "odd/nccl-with-wait-pseudo-collectives.json.gz",
        "odd/no-distributed-info.json.gz",
        "vllm-tp8-b200-rank0/eager_trace.json.gz",
    ],
)
def test_every_column_equals_a_plain_parse(name: str) -> None:
    events = [event for event in parsed(FOLDER / name) if event["ph"] == "X"]
    table = read_once(FOLDER / name)
    order = sorted(range(len(events)), key=lambda row: round(events[row]["ts"] * 1000))
    events = [events[row] for row in order]
    args = [event.get("args", {}) for event in events]
    assert table.ts_ns.tolist() == [round(event["ts"] * 1000) for event in events]
    assert table.dur_ns.tolist() == [max(0, round(event["dur"] * 1000)) for event in events]
    assert [table.names[code] for code in table.name] == [event["name"] for event in events]
    assert table.correlation.tolist() == [arg.get("correlation", -1) for arg in args]
    assert table.external_id.tolist() == [arg.get("External id", -1) for arg in args]
    on_device = table.device >= 0
    assert table.stream[on_device].tolist() == [
        arg["stream"] for arg, on in zip(args, on_device, strict=True) if on
    ]
    tracks = [(track.pid, track.tid) for track in table.tracks]
    assert [tracks[code] for code in table.track] == [(event["pid"], event["tid"]) for event in events]
    entries = [row for row, arg in enumerate(args) if "Collective name" in arg]
    assert table.collectives.row.tolist() == entries
    assert table.collectives.in_elems.tolist() == [args[row]["In msg nelems"] for row in entries]
    for code in np.unique(table.dims)[1:].tolist():
        row = int(np.flatnonzero(table.dims == code)[0])
        assert json.loads(table.shapes[code]) == args[row]["Input Dims"]


def test_times_are_exact_where_the_base_is_apart() -> None:
    for path in json_traces():
        meta = read_once(path).meta
        relative = meta.base_time_ns != 0
        assert meta.ts_exact == relative, path.name


def test_a_trailing_comma_costs_nothing() -> None:
    table = read_once(FOLDER / "odd" / "trailing-comma.trace.json")
    assert table.meta.events_total == 765
    assert {problem.verdict for problem in table.problems} == {Verdict.TIME_NOT_EXACT}


@pytest.mark.parametrize("rank", [0, 1])
def test_names_with_unescaped_quotes_are_mended(rank: int) -> None:
    (path,) = (FOLDER / "vllm-cpu-tp2-nemotron-mtp").glob(f"*_rank{rank}.*")
    table = read_once(path)
    assert [(problem.verdict, problem.count) for problem in table.problems] == [(Verdict.DAMAGED_TEXT, 180)]
    mended = [name for name in table.names if name.startswith("mtpprof|")]
    assert all(json.loads(name.removeprefix("mtpprof|"))["n"] == 2 for name in mended)
    counted = np.count_nonzero(np.isin(table.name, [table.names.index(name) for name in mended]))
    assert counted == 180


def test_vllm_says_who_it_is() -> None:
    (path,) = (FOLDER / "vllm-cpu-tp4-nemotron" / "latent-reduce-on").glob("*_rank3.*")
    table = read_once(path)
    assert table.meta.producer["vllm_version"] == "0.32.0"
    assert "VLLM::Worker_TP3" in {track.process for track in table.tracks}
    operations = {table.names[code] for code in table.name[table.rows(Category.CPU_OP)]}
    assert {"_C::shm_allreduce", "_C::shm_all_gather"} <= operations


@pytest.mark.parametrize(("name", "kernels"), [("before", (1993, 2017)), ("after", (1793, 1794))])
def test_nsight_systems_one_table_per_device(name: str, kernels: tuple[int, int]) -> None:
    tables = read_file(FOLDER / "nsys" / f"mfu_2gpu_{name}.sqlite")
    assert tuple(table.count(Category.KERNEL) for table in tables) == kernels
    assert [table.meta.rank for table in tables] == [0, 1]
    for table in tables:
        assert table.count(Category.NVTX) > 8000
        assert table.count(Category.RUNTIME) > 3000
        nccl = [code for code, text in enumerate(table.names) if text.startswith("ncclDevKernel_SendRecv")]
        assert np.count_nonzero(np.isin(table.name, nccl)) == (33 if name == "before" else 31)
        assert "ncclSend" in table.names
        assert {problem.verdict for problem in table.problems} == {Verdict.ASSUMED_RANK}
