"""Rows of collectives: two sides joined, filtered, held against the ledger."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mtpprof.analyzers.compare.call_rows import collective_rows
from mtpprof.analyzers.compare.side import Side, run_side
from mtpprof.cli.render.units import count_text, time_text
from mtpprof.cli.tui.row_text import change_text, change_word, expected_text, figures, is_changed, matches
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
    rows = collective_rows(wrong, None, paired=False)
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
        ("change:gone", False),
        ("change:same", True),
    ],
)
def test_filters(sides: dict[str, Side], words: str, fits: bool) -> None:
    rows = collective_rows(sides["baseline"], sides["local-argmax"])
    row = next(row for row in rows if row.key[:2] == ("all_gather", "target"))
    assert matches(row, words) is fits


@pytest.mark.parametrize("side", ["a", "b"])
def test_what_was_not_read_is_neither_gone_nor_added(sides: dict[str, Side], side: str) -> None:
    damaged = replace(sides["baseline"], traces=None, missing="a file ends early", damaged=True)
    for absent in (damaged, None):
        pair = (absent, sides["local-argmax"]) if side == "a" else (sides["local-argmax"], absent)
        rows = collective_rows(*pair)
        assert {change_word(row) for row in rows} == {"?"}
        assert {change_text(row) for row in rows} == {"?"}
        assert not any(is_changed(row) for row in rows)
        assert {expected_text(row) for row in rows} == {"B ok" if side == "a" else "A ok"}
        shown = [figures(row, lambda side: side.calls, count_text) for row in rows]
        assert {texts["ab".index(side)] for texts in shown} == {"?"}
        assert not any(matches(row, "change:gone") or matches(row, "change:added") for row in rows)


def test_one_capture_alone_has_no_side_b(sides: dict[str, Side]) -> None:
    rows = collective_rows(sides["baseline"], None, paired=False)
    assert {change_word(row) for row in rows} == {""}
    assert {change_text(row) for row in rows} == {""}
    assert {figures(row, lambda side: side.time_ns, time_text)[1] for row in rows} == {""}
    assert {expected_text(row) for row in rows} == {"ok"}


@pytest.mark.parametrize("by_rank", [False, True])
def test_a_phase_is_told_per_step_that_has_it(sides: dict[str, Side], by_rank: bool) -> None:
    side = replace(sides["baseline"], workload=None)
    whole = {(row.key, row.rank): row.a for row in collective_rows(side, None, by_rank=by_rank)}
    assert side.traces is not None
    calls = side.traces.calls
    drafts = [calls.texts[code].startswith("draft") for code in calls.phase.tolist()]
    first = calls.step == calls.step[calls.step >= 0].min()
    some = replace(side, traces=replace(side.traces, calls=calls.take(~(np.array(drafts) & first))))
    found = {(row.key, row.rank): row.a for row in collective_rows(some, None, by_rank=by_rank)}
    assert any(key[1].startswith("draft") for key, _ in found)
    for key, figure in found.items():
        assert figure is not None
        assert figure.calls == getattr(whole[key], "calls", None)
    ledger = replace(some, workload=sides["baseline"].workload)
    texts = {row.key[1]: expected_text(row) for row in collective_rows(ledger, None, paired=False)}
    assert texts["target"] == "ok"
    assert texts["draft[0]"].endswith("!")


def test_nothing_gives_no_rows(sides: dict[str, Side]) -> None:
    assert collective_rows(None, None) == []
    assert collective_rows(sides["baseline-repeat"], None) == []
