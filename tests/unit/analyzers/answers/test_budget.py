"""Budgets: exact on calls and bytes, patient on time, and never passed in silence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mtpprof.analyzers.answers.budget import BudgetReport, Status, check_budget, ledger_rows
from mtpprof.analyzers.answers.budget_file import (
    ArmBudget,
    Budget,
    Limit,
    budget_toml,
    load_budget,
    make_budget,
)
from mtpprof.analyzers.compare.side import Side
from mtpprof.analyzers.compare.targets import parse_target, sides_of
from mtpprof.errors import InputError
from mtpprof.models.ledger import LedgerEntry
from tests.runs import Ledger, Recipe, write_run

GPU = Recipe(models=("nemotron-3-super",), device="cuda", cpus=64)


def sides(root: Path, recipe: Recipe) -> list[Side]:
    return sides_of(parse_target(str(write_run(root, recipe).root)))


def check(tmp_path: Path, good: Recipe, other: Recipe) -> BudgetReport:
    path = tmp_path / "budget.toml"
    path.write_text(budget_toml(make_budget(sides(tmp_path / "good", good), time=True), "a run"))
    return check_budget(load_budget(path), sides(tmp_path / "other", other))


def brief(report: BudgetReport) -> set[tuple[str, str, str]]:
    return {(row.arm, row.what, row.status) for row in report.rows if row.status != Status.OK}


def test_a_repeat_of_the_run_keeps_its_budget(tmp_path: Path) -> None:
    report = check(tmp_path, GPU, replace(GPU, seed=1, name="again"))
    assert report.passed
    assert brief(report) == set()
    assert {row.what for row in report.rows} == {
        "calls",
        "payload bytes",
        "wire bytes",
        "commutative-reduce engaged",
        "step time",
    }


def doubled(kind: str, arm: str) -> Callable[[str, Ledger], Ledger]:
    """One more all-reduce per MoE layer in the traces of an arm."""

    def seen(name: str, ledger: Ledger) -> Ledger:
        extra: tuple[LedgerEntry, ...] = ()
        if name == arm:
            extra = tuple(entry for entry in ledger if entry.site.endswith(kind))
        return (*ledger, *extra)

    return seen


def test_one_more_all_reduce_per_layer_fails_on_count_and_bytes(tmp_path: Path) -> None:
    worse = replace(GPU, seen=doubled("moe.final", "commutative-reduce"))
    report = check(tmp_path, GPU, worse)
    assert not report.passed
    assert {(row.arm, row.what) for row in report.over} == {
        ("commutative-reduce", "calls"),
        ("commutative-reduce", "payload bytes"),
        ("commutative-reduce", "wire bytes"),
    }
    calls = next(row for row in report.over if row.what == "calls")
    assert calls.measured is not None
    assert calls.limit is not None
    assert calls.measured - calls.limit == 3


def test_five_percent_slower_inside_the_noise_passes(tmp_path: Path) -> None:
    noisy = replace(GPU, noise=0.2)
    slower = replace(noisy, seed=2, speed=lambda arm: 1.05)
    report = check(tmp_path, noisy, slower)
    assert report.passed
    assert any("within noise" in row.note for row in report.rows if row.what == "step time")


def test_twenty_percent_slower_beyond_the_noise_fails(tmp_path: Path) -> None:
    report = check(tmp_path, GPU, replace(GPU, speed=lambda arm: 1.2))
    assert {row.what for row in report.over} == {"step time"}
    assert "20.0%" in report.over[0].note


def test_an_optimization_that_no_longer_engages_fails(tmp_path: Path) -> None:
    off: dict[str, Ledger] = {}

    def silent(name: str, ledger: Ledger) -> Ledger:
        off.setdefault("baseline", ledger)
        return off["baseline"]

    report = check(tmp_path, GPU, replace(GPU, seen=silent))
    assert ("commutative-reduce", "commutative-reduce engaged", "over") in brief(report)


def test_what_cannot_be_checked_is_said_and_an_arm_without_anything_fails(tmp_path: Path) -> None:
    other_machine = replace(GPU, device="cpu", cpus=64)
    report = check(tmp_path, GPU, other_machine)
    assert report.passed
    assert ("baseline", "step time", "not checked") in brief(report)
    assert any("another machine" in row.note for row in report.rows)
    report = check(tmp_path / "x", GPU, replace(GPU, concurrency=(4,)))
    assert {row.note for row in report.over} == {"the arm is not in what is checked"}
    lone = Budget(
        schema_version=1,
        arm=[
            ArmBudget(
                case="",
                arm="",
                limit=(Limit(batch="decode, 9 rows", phase="target", kind="all_reduce", calls=1),),
            )
        ],
    )
    side = replace(sides(tmp_path / "y", GPU)[0], case="")
    report = check_budget(lone, [side])
    assert [row.status for row in report.rows] == [Status.UNCHECKED, Status.OVER]


def test_an_arm_of_which_there_is_nothing_is_neither_written_nor_kept(tmp_path: Path) -> None:
    base, *_ = sides(tmp_path, GPU)
    timed_only = replace(base, traces=None, missing="timed only")
    with pytest.raises(InputError, match="nothing to write a budget from"):
        make_budget([timed_only], time=False)
    assert len(make_budget([timed_only, base], time=False).arm) == 1
    empty = Budget(schema_version=1, arm=[ArmBudget(case=base.case, arm=base.label)])
    assert [row.note for row in check_budget(empty, [timed_only]).over] == [
        "nothing of its budget could be checked"
    ]


def test_a_kind_that_the_budget_does_not_have_exceeds_it(tmp_path: Path) -> None:
    side = replace(sides(tmp_path / "run", GPU)[0], case="")
    budget = make_budget([side], time=False)
    (arm,) = budget.arm
    kept = tuple(limit for limit in arm.limit if limit.kind != "all_gather")
    fewer = ArmBudget(case="", arm="", limit=kept)
    report = check_budget(Budget(schema_version=1, arm=[fewer]), [side])
    assert [(row.kind, row.limit, row.measured) for row in report.over] == [("all_gather", 0, 1)]


def test_a_capture_against_its_models_ledger(tmp_path: Path) -> None:
    made = {side.label: side for side in sides(tmp_path / "run", GPU)}
    base = list(ledger_rows(made["baseline"]))
    assert [(row.what, row.status, row.measured) for row in base] == [("redundant", Status.OVER, 3)]
    on = list(ledger_rows(made["commutative-reduce"]))
    assert [(row.what, row.status) for row in on] == [("ledger", Status.OK)]
