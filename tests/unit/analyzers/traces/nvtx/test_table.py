from __future__ import annotations

from pathlib import Path

import pytest

from mtpprof.analyzers.traces.formats import read_file, reader_for
from mtpprof.analyzers.traces.readers.base import TraceFormatError
from mtpprof.analyzers.traces.table import Category
from mtpprof.analyzers.traces.verdicts import Verdict
from mtpprof.nvtxformat import DefinitionKind
from tests.unit.analyzers.traces.nvtx.written import (
    REALTIME_OFFSET,
    Written,
    definition,
    end,
    mark,
    pop,
    push,
    start,
    text_field,
)


def test_closed_ranges_are_rows_on_a_track_per_thread_and_domain(tmp_path: Path) -> None:
    path = tmp_path / "rank2.pid42.nvtx"
    written = Written(
        rank=2,
        definitions=[definition(DefinitionKind.DOMAIN, 1, 1, text_field("NCCL"))],
        events=[
            mark(5, "before"),
            push(10, "a"),
            push(12, "b", domain=1),
            pop(14, domain=1),
            pop(20),
            start(30, 1, "free", thread=2),
            end(35, 1, thread=2),
            push(40, "open"),
        ],
    )
    path.write_bytes(written.data())
    (table,) = read_file(path)
    assert [table.names[code] for code in table.name] == ["a", "b", "free"]
    assert table.ts_ns.tolist() == [0, 2, 20]
    assert table.dur_ns.tolist() == [10, 2, 5]
    assert table.meta.base_time_ns == REALTIME_OFFSET + 10
    assert (table.meta.rank, table.meta.reader, table.meta.host) == (2, "nvtx", "host")
    assert table.count(Category.NVTX) == 3
    assert [table.tracks[code].thread for code in table.track] == ["worker", "worker NCCL", "worker"]
    assert [problem.verdict for problem in table.problems] == [Verdict.OPEN_RANGES]
    peek = reader_for(path).peek(path, limits=None)  # type: ignore[arg-type]
    assert (peek.rank, peek.start_ns, peek.size_bytes) == (2, REALTIME_OFFSET + 10, path.stat().st_size)


def test_a_capture_of_nothing_has_no_base(tmp_path: Path) -> None:
    path = tmp_path / "pid1.nvtx"
    path.write_bytes(Written().data())
    (table,) = read_file(path)
    assert len(table) == 0
    assert table.meta.base_time_ns is None


def test_a_damaged_capture_is_a_format_error_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "pid1.nvtx"
    path.write_bytes(Written().data()[:100])
    with pytest.raises(TraceFormatError, match=r"pid1\.nvtx: is no NVTX capture of mtpprof: it is too short"):
        read_file(path)
