"""Answers as rows for CSV: they say what the tables say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mtpprof.analyzers.answers.analysis import analysis_of
from mtpprof.analyzers.answers.run_report import make_report
from mtpprof.analyzers.calls.attribution import analyze
from mtpprof.analyzers.compare.targets import compare_targets, parse_target
from mtpprof.cli.render.rows import (
    COMPARISON_COLUMNS,
    REPORT_COLUMNS,
    comparison_rows,
    group_columns,
    group_rows,
    report_rows,
)
from mtpprof.rundir.directory import RunDirectory
from tests.runs import Recipe, write_run
from tests.unit.analyzers.calls.test_unknown_names import hidden
from tests.unit.analyzers.tables import NCCL_AR, Trace, one_run, record

RECIPE = Recipe(
    models=("nemotron-3-super",), rounds=1, speed=lambda arm: 0.9 if arm == "commutative-reduce" else 1.0
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Of one round; in the second arm nobody knows the name of some collectives."""
    made = write_run(tmp_path_factory.mktemp("run") / "made", RECIPE)
    return hidden(made, "commutative-reduce", "layers.3")


def test_a_row_an_arm_tells_lower_bounds_and_the_change_of_a_single_round(run: RunDirectory) -> None:
    report = make_report(run)
    rows = {row["arm"]: row for row in report_rows(report)}
    assert all(tuple(row) == REPORT_COLUMNS for row in rows.values())
    bounds = {name: row["lower_bound"] for name, row in rows.items()}
    assert bounds == {"baseline": False, "baseline-repeat": None, "commutative-reduce": True}
    arm, (difference,) = rows["commutative-reduce"], report.cases[0].differences
    assert difference.step.difference is None, "a round has no interval"
    assert difference.step.difference_ns is not None
    assert arm["step_change_ns"] == difference.step.difference_ns < 0
    assert (arm["step_change_low_ns"], arm["step_change_high_ns"]) == (None, None)


def test_a_row_a_batch_tells_which_side_is_a_lower_bound(run: RunDirectory) -> None:
    base, arm = (parse_target(f"{run.root}:{name}") for name in ("baseline", "commutative-reduce"))
    answer = compare_targets(base, arm)
    (row,) = comparison_rows(answer.comparisons)
    assert tuple(row) == COMPARISON_COLUMNS
    assert (row["base_lower_bound"], row["arm_lower_bound"]) == (False, True)


def test_changes_have_their_unit_last(tmp_path: Path) -> None:
    made = write_run(tmp_path / "made", replace(RECIPE, rounds=2))
    report = make_report(made)
    row = next(row for row in report_rows(report) if row["arm"] == "commutative-reduce")
    (difference,) = report.cases[0].differences
    assert row["calls_change"] == difference.calls == -3
    assert row["payload_change_bytes"] == difference.payload_bytes
    assert row["wire_change_bytes"] == difference.wire_bytes
    assert row["collective_change_ns"] == difference.collective_ns


@pytest.mark.parametrize("name", ["acme::fast_all_reduce", "aten::mm"])
def test_groups_are_lower_bounds_while_a_name_is_not_known(name: str) -> None:
    trace = Trace()
    trace.kernel(NCCL_AR, 150, 40, launched=20, record=record())
    trace.kernel(name, 300, 40, launched=30)
    found = analyze(one_run(trace.table()))
    (row,) = group_rows(analysis_of(found, ("kind",)))
    assert tuple(row) == group_columns(("kind",))
    assert row["lower_bound"] is (name != "aten::mm")
