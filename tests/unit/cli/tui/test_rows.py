"""Rows of collectives: two sides joined, filtered, held against the ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mtpprof.analyzers.sides import Side, run_side
from mtpprof.cli.tui.rows import (
    change_text,
    change_word,
    collective_rows,
    expected_text,
    matches,
)
from tests.runs import Recipe, write_run


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Side]:
    recipe = Recipe(models=("deepseek-v3.2",), rounds=1, steps=1)
    directory = write_run(tmp_path_factory.mktemp("rows") / "run", recipe)
    run = directory.run()
    case = run.cases[0]
    return {arm.name: run_side(directory, run, case, arm) for arm in case.arms}


def test_rows_add_up_to_the_calls_of_each_side(sides: dict[str, Side]) -> None:
    rows = collective_rows(sides["baseline"], sides["local-argmax"])
    for name, letter in (("baseline", "a"), ("local-argmax", "b")):
        traces = sides[name].traces
        assert traces is not None
        figures = [getattr(row, letter) for row in rows if getattr(row, letter) is not None]
        inside = traces.calls.take((traces.calls.step >= 0) & ~traces.calls.transient)
        pairs = 2 * 3
        assert sum(side.calls for side in figures) * pairs == pytest.approx(len(inside))
        assert sum(side.time_ns for side in figures) * pairs == pytest.approx(int(inside.dur_ns.sum()))


def test_by_rank_means_over_that_ranks_steps(sides: dict[str, Side]) -> None:
    rows = collective_rows(sides["baseline"], None, by_rank=True)
    assert {row.rank for row in rows} == {0, 1}
    assert all(row.a is not None and row.a.calls == row.a.expected for row in rows)


def test_a_replaced_gather_is_gone_and_added(sides: dict[str, Side]) -> None:
    rows = collective_rows(sides["baseline"], sides["local-argmax"])
    gathers = [row for row in rows if row.key[0] == "all_gather" and row.key[1].startswith("draft")]
    assert sorted(change_word(row) for row in gathers) == ["added"] * 3 + ["gone"] * 3
    assert {change_text(row) for row in gathers} == {"+1", "-1"}


def test_a_call_too_many_is_marked(sides: dict[str, Side]) -> None:
    wrong = replace(sides["baseline"], enabled=frozenset({"local-argmax"}))
    rows = collective_rows(wrong, None)
    texts = {row.key[1]: expected_text(row) for row in rows if row.key[0] == "all_gather"}
    assert texts["target"] == "ok"
    assert texts["draft[0]"] == "1/0!"
    assert {expected_text(row) for row in collective_rows(replace(wrong, spec=None), None)} == {"?"}


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        ("", True),
        ("all_gather", True),
        ("kind:all_gather phase:target", True),
        ("kind:all_gather phase:draft", False),
        ("site:lm_head ALL", True),
        ("[/bold]", False),
        ("nosuch:column", False),
        ("size:", True),
        ("change:gone", True),
    ],
)
def test_filters(sides: dict[str, Side], words: str, fits: bool) -> None:
    rows = collective_rows(sides["baseline"], None)
    row = next(row for row in rows if row.key[:2] == ("all_gather", "target"))
    assert matches(row, words) is fits


def test_nothing_gives_no_rows(sides: dict[str, Side]) -> None:
    assert collective_rows(None, None) == []
    assert collective_rows(sides["baseline-repeat"], None) == []
