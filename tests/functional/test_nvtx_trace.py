"""Perfetto's own engine reads NVTX traces whole, in both formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtpprof.analyzers.perfetto.nvtx import write_trace
from mtpprof.nvtxformat import DefinitionKind
from tests.functional.perfetto_engine import load, needs_engine
from tests.unit.analyzers.traces.nvtx.written import (
    Written,
    definition,
    end,
    mark,
    pop,
    push,
    start,
    text_field,
)


@needs_engine
@pytest.mark.parametrize("name", ["t.json.gz", "t.pftrace"])
def test_nothing_is_lost_of_nested_and_crossing_ranges(tmp_path: Path, name: str) -> None:
    domains = [definition(DefinitionKind.DOMAIN, n, n, text_field(f"domain {n}")) for n in (1, 2)]
    events = [push(10_000, "outer"), push(20_000, "in a", domain=1), push(30_000, "in b", domain=2)]
    events += [pop(40_000, domain=1), pop(50_000, domain=2), mark(55_000, "mark"), pop(60_000)]
    events += [
        event
        for n in range(50)
        for event in (start(1000 * n + 1, n + 1, "free"), end(2500 * n + 2000, n + 1))
    ]
    events += [push(900_000, "never closed"), push(910_000, "within"), pop(920_000)]
    capture = Written(rank=1, definitions=domains, events=events).capture()
    path = tmp_path / name
    assert write_trace([capture], path) == len(capture)
    slices, times, names = load(
        path,
        "select count(*) from slice",
        "select sum(dur) from slice where name != 'never closed'",
        "select group_concat(distinct name) from slice where depth > 0",
    )
    closed = capture.dur_ns[capture.dur_ns >= 0]
    assert slices.value == len(capture) == 56
    assert times.value == int(closed.sum())
    assert set(names.value.split(",")) == {"mark", "within"}
