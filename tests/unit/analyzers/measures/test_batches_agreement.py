"""Ranks that did not do the same in the same step: no figure of theirs is one number."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtpprof.analyzers.answers.budget import check_budget
from mtpprof.analyzers.answers.budget_file import make_budget
from mtpprof.analyzers.answers.run_report import make_report
from mtpprof.analyzers.calls.steps import Steps
from mtpprof.analyzers.compare import side as sides
from mtpprof.analyzers.compare.side import run_side
from mtpprof.analyzers.compare.targets import compare_targets, parse_target, sides_of
from mtpprof.analyzers.measures.batches import find_disagreement
from mtpprof.cli.render.comparison import comparison_tables
from mtpprof.cli.render.pullrequest import pull_request
from mtpprof.cli.render.report import case_tables
from mtpprof.models.ledger import Workload
from mtpprof.rundir.directory import RunDirectory
from tests.runs import STEP_NS, Recipe, write_run
from tests.unit.analyzers.calls.test_unknown_names import rewritten

REASON = (
    "rank 2 did not do what rank 0 did in 3 of 3 steps "
    "(step 0: 12 calls, 13,056 B of payload against 12 calls, 26,112 B of payload)"
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    recipe = Recipe(models=("nemotron-3-super",), tp=4, concurrency=(2, 4))
    return write_run(tmp_path_factory.mktemp("run") / "made", recipe)


@pytest.fixture(scope="module")
def mixed(good: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """In the place of rank 2 of the second case's baseline lies that of the first case."""
    directory = RunDirectory(Path(shutil.copytree(good.root, tmp_path_factory.mktemp("run") / "mixed")))
    first, second = directory.run().cases
    shutil.copy(directory.trace(first.id, "baseline", 2), directory.trace(second.id, "baseline", 2))
    return directory


def test_ranks_that_did_the_same_agree(good: RunDirectory) -> None:
    run = good.run()
    for case in run.cases:
        for arm in case.arms:
            traces = run_side(good, run, case, arm).traces
            if traces is not None:
                assert find_disagreement(traces.calls, traces.steps).rows == frozenset()
                assert (traces.apart, len(traces.strata)) == ("", 1)


def test_no_figure_is_made_of_ranks_that_did_not_do_the_same(mixed: RunDirectory) -> None:
    report = make_report(mixed)
    whole, broken = report.cases
    assert whole.differences[0].calls == -3
    baseline = broken.arms[0]
    assert (baseline.totals, baseline.groups, baseline.excess) == (None, [], [])
    assert baseline.missing == f"calls and bytes are not one number: {REASON}"
    assert not baseline.damaged, "what the ranks did is known, and told"
    assert {mismatch.ranks for mismatch in baseline.mismatches} == {(2,)}
    (entry,) = broken.differences
    assert (entry.calls, entry.payload_bytes, entry.wire_bytes, entry.collective_ns) == (None,) * 4
    assert (entry.changes, entry.waterfall, entry.no_waterfall) == ([], None, f"baseline: {REASON}")
    assert entry.step.difference is not None, "times were measured without the traces"
    assert f"baseline: {REASON}; steps of such a batch are not compared." in entry.caveats


def test_every_answer_names_the_rank(mixed: RunDirectory) -> None:
    report = make_report(mixed)
    saved = next(table for table in case_tables(report.cases[1]) if table.title.startswith("saved"))
    assert saved.rows[0][2:5] == ("?", "?", "?")
    assert f"commutative-reduce: no calls, bytes or waterfall: baseline: {REASON}." in saved.note
    assert f"`baseline`: calls and bytes are not one number: {REASON}." in pull_request(report)
    case = report.cases[1].id
    (only,) = compare_targets(
        parse_target(f"{mixed.root}:{case}/baseline"), parse_target(f"{mixed.root}:{case}/commutative-reduce")
    ).comparisons
    assert only.difference.calls is None
    assert REASON in comparison_tables(only)[0].note


def test_a_budget_is_not_kept_by_a_mean_of_ranks(good: RunDirectory, mixed: RunDirectory) -> None:
    case = good.run().cases[1].id
    budget = make_budget(sides_of(parse_target(f"{good.root}:{case}/baseline")), time=False)
    kept, broken = (
        check_budget(budget, sides_of(parse_target(f"{run.root}:{case}/baseline"))) for run in (good, mixed)
    )
    assert kept.passed
    assert not broken.passed
    assert {row.note for row in broken.rows if row.what == "calls"} == {REASON}


def test_a_capture_of_such_ranks_says_that_its_figures_are_means(mixed: RunDirectory) -> None:
    case = mixed.run().cases[1].id
    base, arm = (parse_target(str(mixed.arm(case, arm))) for arm in ("baseline", "commutative-reduce"))
    (only,) = compare_targets(base, arm).comparisons
    assert (
        "not every rank and step issues the same collectives; figures are means."
        in comparison_tables(only)[0].note
    )


LAST_STEP_US = (1_000_000 + 2 * 1.5 * STEP_NS) / 1000


@pytest.fixture
def once(good: RunDirectory, tmp_path: Path) -> RunDirectory:
    """Rank 2 leaves out collectives of the baseline's last step, in the second case."""
    directory = RunDirectory(Path(shutil.copytree(good.root, tmp_path / "once")))

    def leave_out(event: dict[str, Any]) -> None:
        if event["ts"] > LAST_STEP_US and ".moe.latent" in event["name"]:
            event["name"], event["cat"] = "aten::mul", "cpu_op"

    rewritten(directory.trace(directory.run().cases[1].id, "baseline", 2), leave_out)
    return directory


def last_step_of_another_batch(as_told: Callable[[Steps, Workload], Steps]) -> Callable[..., Steps]:
    def with_batch(steps: Steps, workload: Workload) -> Steps:
        told = as_told(steps, workload)
        return replace(told, rows=np.where(told.number == 2, 1, told.rows).astype(np.int32))

    return with_batch


def test_a_step_takes_the_others_of_its_batch_with_it(once: RunDirectory) -> None:
    case = make_report(once).cases[1]
    assert (case.arms[0].totals, case.arms[0].groups) == (None, [])
    (caveat,) = [text for text in case.differences[0].caveats if "did not do" in text]
    assert "in 1 of 3 steps" in caveat
    assert caveat.endswith("; steps of such a batch are not compared.")


def test_steps_of_another_batch_keep_their_figures(
    good: RunDirectory, once: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sides, "_with_batch", last_step_of_another_batch(sides._with_batch))
    whole, case = make_report(good).cases[1], make_report(once).cases[1]
    baseline, expected = case.arms[0], whole.arms[0]
    assert baseline.totals is not None
    assert expected.totals is not None
    assert (baseline.totals.calls, baseline.totals.payload_bytes) == (
        expected.totals.calls,
        expected.totals.payload_bytes,
    )
    assert [group.calls for group in baseline.groups] == [group.calls for group in expected.groups]
    assert (baseline.partial, expected.partial) == (True, False)
    table = pull_request(make_report(once)).split("###")[2]
    (cells,) = [line for line in table.splitlines() if line.startswith("| collectives")]
    assert "%" not in cells, "sums over other batches are not held against one another"
    assert baseline.missing is not None
    assert baseline.missing.startswith("calls and bytes are those of other batches: rank 2 did not do")
    assert case.differences[0].calls == whole.differences[0].calls == -3
    assert len(case.differences[0].strata) == len(whole.differences[0].strata) - 1
