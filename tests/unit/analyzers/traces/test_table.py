from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mtpprof.analyzers.traces.table import (
    COLLECTIVE_COLUMNS,
    EVENT_COLUMNS,
    Category,
    EventTable,
    TraceMeta,
    TraceSet,
)
from mtpprof.analyzers.traces.verdicts import Problem, Verdict
from tests.unit.analyzers.chrome import complete, kernel, read_text, text


@pytest.fixture
def table(tmp_path: Path) -> EventTable:
    events = [
        complete("op", 1.5, args={"Input Dims": [[2, 3], []], "Input type": ["float", "Scalar"]}),
        kernel("nccl", 2.5, **{"Collective name": "allreduce", "In msg nelems": 6, "dtype": "Float"}),
        kernel("gemm", 3.5),
        kernel("nccl", 4.5, **{"Collective name": "_allgather_base", "In msg nelems": 7}),
        complete("mtpprof::step index=1", 5.5, cat="user_annotation"),
    ]
    return read_text(tmp_path, text(events)).with_problems(
        Problem(verdict=Verdict.TRUNCATED, sentence="cut.")
    )


def test_rows_and_counts(table: EventTable) -> None:
    assert table.rows(Category.KERNEL).tolist() == [1, 2, 3]
    assert table.rows(Category.CPU_OP, Category.USER_ANNOTATION).tolist() == [0, 4]
    assert table.rows(Category.NVTX).tolist() == []
    assert table.count(Category.KERNEL) == 3
    assert table.end_ns.tolist() == [3000, 12500, 13500, 14500, 7000]


def test_selection_keeps_collectives_with_their_rows(table: EventTable) -> None:
    kernels = table.select(table.category == Category.KERNEL)
    assert len(kernels) == 3
    assert kernels.collectives.row.tolist() == [0, 2]
    assert [kernels.text(code) for code in kernels.collectives.name] == ["allreduce", "_allgather_base"]
    last = kernels.select(np.array([2]))
    assert last.collectives.row.tolist() == [0]
    assert last.collectives.in_elems.tolist() == [7]
    assert len(kernels.select(np.zeros(3, np.bool_)).collectives) == 0


def test_texts(table: EventTable) -> None:
    assert table.input_dims(int(table.dims[0])) == ((2, 3), ())
    assert table.input_types(int(table.types[0])) == ("float", "Scalar")
    assert table.input_dims(-1) is None
    assert table.text(-1) is None
    assert replace(table, shapes=("not json", "3")).input_dims(0) is None
    assert replace(table, shapes=("not json", "3")).input_dims(1) is None


def test_saving_keeps_everything(table: EventTable) -> None:
    file = io.BytesIO()
    table.save(file)
    file.seek(0)
    loaded = EventTable.load(file)
    for name in EVENT_COLUMNS:
        assert np.array_equal(getattr(loaded, name), getattr(table, name)), name
    for name in COLLECTIVE_COLUMNS:
        assert np.array_equal(getattr(loaded.collectives, name), getattr(table.collectives, name)), name
    for name in ("names", "tracks", "shapes", "strings", "meta", "problems"):
        assert getattr(loaded, name) == getattr(table, name), name


def test_archives_of_another_layout_are_refused(table: EventTable) -> None:
    file = io.BytesIO()
    replace(table, ts_ns=table.ts_ns.astype(np.int32)).save(file)
    file.seek(0)
    with pytest.raises(ValueError, match="ts_ns"):
        EventTable.load(file)
    file = io.BytesIO()
    replace(table, name=table.name[:2]).save(file)
    file.seek(0)
    with pytest.raises(ValueError, match="unequal"):
        EventTable.load(file)
    file = io.BytesIO()
    np.savez(file, ts_ns=table.ts_ns)
    file.seek(0)
    with pytest.raises(KeyError):
        EventTable.load(file)
    with pytest.raises((ValueError, OSError, zipfile.BadZipFile)):
        EventTable.load(io.BytesIO(b"PK\x03\x04 no archive"))


def test_codes_beyond_their_texts_are_refused(table: EventTable) -> None:
    file = io.BytesIO()
    replace(table, names=table.names[:1]).save(file)
    file.seek(0)
    with pytest.raises(ValueError, match="codes"):
        EventTable.load(file)


def trace_set(table: EventTable, *ranks: int | None, world_size: int | None = 4) -> TraceSet:
    tables = tuple(
        replace(
            table,
            meta=TraceMeta(path=f"{rank}.json", reader="kineto", rank=rank),
            problems=(Problem(verdict=Verdict.TRUNCATED, sentence=f"of {rank}."),),
        )
        for rank in ranks
    )
    own = (Problem(verdict=Verdict.MISSING_RANKS, sentence="x."),)
    return TraceSet(label="run", tables=tables, world_size=world_size, problems=own)


def test_ranks_of_a_set(table: EventTable) -> None:
    traces = trace_set(table, 0, 2, None)
    assert traces.ranks == (0, 2)
    assert traces.missing_ranks == (1, 3)
    assert traces.table(2).meta.path == "2.json"
    with pytest.raises(KeyError):
        traces.table(1)
    assert trace_set(table, 0, 2, world_size=None).missing_ranks == ()
    assert [problem.sentence for problem in traces.all_problems()] == ["x.", "of 0.", "of 2.", "of None."]
