"""Collectives that no rule knows: they must not look like a saving."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtpprof.analyzers.answers.budget import Status, check_budget, ledger_rows
from mtpprof.analyzers.answers.budget_file import ArmBudget, Budget, Limit, make_budget
from mtpprof.analyzers.answers.run_report import make_report
from mtpprof.analyzers.calls.attribution import ReadOptions
from mtpprof.analyzers.calls.rules import Rule, load_rules
from mtpprof.analyzers.calls.unknown_names import Suspect, suspicion
from mtpprof.analyzers.compare.difference import engagement_of_side
from mtpprof.analyzers.compare.side import Side, read_traces
from mtpprof.analyzers.compare.targets import Comparison, compare_targets, parse_target, sides_of
from mtpprof.cli.render.comparison import comparison_tables
from mtpprof.cli.render.pullrequest import pull_request
from mtpprof.cli.render.report import case_tables
from mtpprof.rundir.directory import RunDirectory
from tests.runs import Recipe, write_run
from tests.traces import needs_traces, trace_folder

UNKNOWN_OP = "acme::fast_all_reduce"
RULE = f"""[[rule]]
id = "acme"
pattern = "^{UNKNOWN_OP}$"
scope = "cpu_op"
kind = "all_reduce"
implementation = "acme"
"""


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    trace = json.loads(gzip.decompress(path.read_bytes()))
    for event in trace["traceEvents"]:
        change(event)
    path.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))


def hidden(run: RunDirectory, arm: str, site: str, name: str = UNKNOWN_OP) -> RunDirectory:
    """The run with the collectives of an arm at some sites as operations of another name."""

    def hide(event: dict[str, Any]) -> None:
        if site in event["name"]:
            event["name"], event["cat"] = name, "cpu_op"

    (case,) = run.run().cases
    for rank in range(case.tp):
        rewritten(run.trace(case.id, arm, rank), hide)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Both arms are the baseline, but in the second nobody knows the name of the latent reduction."""
    whole: dict[str, Any] = {}
    recipe = Recipe(
        models=("nemotron-3-super",),
        seen=lambda arm, ledger: whole.setdefault("ledger", ledger),
        speed=lambda arm: 0.9 if arm == "commutative-reduce" else 1.0,
    )
    return hidden(
        write_run(tmp_path_factory.mktemp("run") / "made", recipe), "commutative-reduce", ".moe.latent"
    )


def compared(run: RunDirectory, first: str, second: str, rules: tuple[Rule, ...] = ()) -> Comparison:
    targets = parse_target(f"{run.root}:{first}"), parse_target(f"{run.root}:{second}")
    (only,) = compare_targets(*targets, ReadOptions(rules=rules)).comparisons
    return only


def side(run: RunDirectory, arm: str, rules: tuple[Rule, ...] = ()) -> Side:
    (only,) = sides_of(parse_target(f"{run.root}:{arm}"), ReadOptions(rules=rules))
    return only


def told(tmp_path: Path) -> tuple[Rule, ...]:
    path = tmp_path / "rules.toml"
    path.write_text(RULE)
    return load_rules(path)


def test_sentences_name_calls_and_time_and_hold_few_names() -> None:
    assert suspicion([]) == ""
    one = Suspect(name="x", count=2, dur_ns=1_500_000)
    assert suspicion([one]) == "2 × x (1.500 ms over all ranks) looks like communication and no rule knows it"
    many = [Suspect(name=f"{index}{'y' * 5000}", count=1, dur_ns=0) for index in range(5)]
    assert len(suspicion(many)) < 500
    assert "2 more names look like communication and no rule knows them" in suspicion(many)


def test_counts_are_lower_bounds_while_a_suspect_stands(run: RunDirectory, tmp_path: Path) -> None:
    case = run.run().cases[0].id
    traces = read_traces([run.arm(case, "commutative-reduce")])
    assert not traces.found.counts_are_exact
    assert any(item.answer == "counts" and UNKNOWN_OP in item.reason for item in traces.found.withheld)
    assert read_traces([run.arm(case, "baseline")]).found.counts_are_exact
    options = ReadOptions(rules=told(tmp_path))
    assert read_traces([run.arm(case, "commutative-reduce")], options).found.counts_are_exact


def test_what_is_not_recognised_is_neither_removed_nor_engaged_nor_saved(run: RunDirectory) -> None:
    found = compared(run, "baseline", "commutative-reduce")
    entry = found.difference
    assert (entry.calls, entry.payload_bytes, entry.wire_bytes, entry.collective_ns) == (None,) * 4
    assert found.capture_calls is None
    (change,) = entry.changes
    assert (change.what, change.calls, change.payload_bytes) == ("not seen after", 3, None)
    engagement = entry.engagement["commutative-reduce"]
    assert (engagement.requested, engagement.verdict) == (True, "UNKNOWN")
    assert f"18 × {UNKNOWN_OP}" in engagement.reason
    assert "not known to have engaged" in entry.step.reason
    assert (found.arm.excess, found.arm.ledger) == ([], {})
    (suspect,) = found.arm.suspects
    assert (suspect.name, suspect.count) == (UNKNOWN_OP, 18)
    assert found.base.suspects == ()
    assert any(
        caveat.startswith(f"commutative-reduce: counts: 18 × {UNKNOWN_OP}") for caveat in entry.caveats
    )
    shown = "\n".join(" ".join(row) for table in comparison_tables(found) for row in table.rows)
    assert "→ ≥ " in shown
    assert "removed" not in shown


def test_what_is_not_recognised_on_the_first_side_is_not_added(run: RunDirectory) -> None:
    entry = compared(run, "commutative-reduce", "baseline").difference
    assert entry.calls is None
    assert [change.what for change in entry.changes] == ["not seen before"]


def test_a_rule_for_the_name_settles_it(run: RunDirectory, tmp_path: Path) -> None:
    found = compared(run, "baseline", "commutative-reduce", told(tmp_path))
    assert found.difference.calls == 0
    assert found.arm.suspects == ()


def test_a_report_names_them_and_makes_no_effect_of_them(run: RunDirectory) -> None:
    report = make_report(run)
    arms = {arm.name: arm for arm in report.cases[0].arms}
    assert [item.name for item in arms["commutative-reduce"].suspects] == [UNKNOWN_OP]
    assert arms["baseline"].suspects == ()
    assert arms["commutative-reduce"].engagement["commutative-reduce"].verdict == "UNKNOWN"
    text = "\n".join([table.note for table in case_tables(report.cases[0])])
    assert f"commutative-reduce: calls and bytes are lower bounds: 18 × {UNKNOWN_OP}" in text
    assert "≥ " in pull_request(report)
    assert UNKNOWN_OP in pull_request(report)


def test_a_budget_that_is_undercut_by_something_unknown_is_not_kept(run: RunDirectory) -> None:
    base, arm = side(run, "baseline"), side(run, "commutative-reduce")
    (limits,) = make_budget([base], time=False).arm
    budget = Budget(schema_version=1, arm=[ArmBudget(case=arm.case, arm=arm.label, limit=limits.limit)])
    rows = check_budget(budget, [arm]).rows
    reduces = [row for row in rows if row.kind == "all_reduce"]
    assert {row.status for row in reduces} == {Status.UNCHECKED}
    assert [row.status for row in rows if row.what == "uncounted"] == [Status.OVER]
    assert {row.status for row in rows if row.kind == "all_gather"} == {Status.OK}


def test_a_budget_of_which_nothing_could_be_checked_fails(run: RunDirectory) -> None:
    arm = side(run, "commutative-reduce")
    (limits,) = make_budget([arm], time=False).arm
    more = tuple(
        Limit(batch=limit.batch, phase=limit.phase, kind=limit.kind, calls=limit.calls + 1)
        for limit in limits.limit
    )
    budget = Budget(schema_version=1, arm=[ArmBudget(case=arm.case, arm=arm.label, limit=more)])
    report = check_budget(budget, [arm])
    assert [row.what for row in report.over] == ["uncounted"]


def test_more_than_the_budget_exceeds_it_whatever_else_there_is(run: RunDirectory) -> None:
    arm = side(run, "commutative-reduce")
    (limits,) = make_budget([arm], time=False).arm
    assert limits.engaged == ()
    fewer = tuple(
        Limit(batch=limit.batch, phase=limit.phase, kind=limit.kind, calls=0) for limit in limits.limit
    )
    budget = Budget(schema_version=1, arm=[ArmBudget(case=arm.case, arm=arm.label, limit=fewer)])
    assert len(check_budget(budget, [arm]).over) == len(fewer)


def test_nothing_is_missing_from_a_ledger_while_a_suspect_stands(run: RunDirectory) -> None:
    rows = list(ledger_rows(side(run, "commutative-reduce")))
    assert "missing" not in {row.what for row in rows}
    assert [row.note for row in rows if row.status == Status.OVER] == ["no batch of it could be checked"]
    assert {item.verdict for item in engagement_of_side(side(run, "commutative-reduce")).values()} <= {
        "UNKNOWN",
        "NOT APPLICABLE",
    }


def test_a_name_that_says_nothing_is_found_by_its_number(tmp_path: Path) -> None:
    whole: dict[str, Any] = {}
    recipe = Recipe(models=("nemotron-3-super",), seen=lambda arm, ledger: whole.setdefault("ledger", ledger))
    made = hidden(write_run(tmp_path / "run", recipe), "commutative-reduce", ".moe.latent", "acme::rms")
    sentence = (
        "commutative-reduce: 3 × acme::rms a step stand where the other side has as many all-reduces: "
        "if it is communication, nothing was saved; teach it with --rules."
    )
    forth = compared(made, "baseline", "commutative-reduce").difference
    assert forth.newcomers == (sentence,)
    assert sentence in forth.caveats
    assert forth.calls == -3, "a caveat and no verdict"
    assert compared(made, "commutative-reduce", "baseline").difference.newcomers == (sentence,)
    assert sentence in "\n".join(table.note for table in case_tables(make_report(made).cases[0]))


@needs_traces
def test_kernels_of_a_device_are_found_by_their_number(tmp_path: Path) -> None:
    folder = trace_folder("sglang-tp4-gb300-nccl")

    def rename(event: dict[str, Any]) -> None:
        if event.get("cat") == "kernel" and event["name"].startswith("ncclDevKernel_AllReduce"):
            event["name"] = "acme::fused_ar_rms"

    for path in folder.glob("*.gz"):
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes())
        rewritten(copy, rename)
    (found,) = compare_targets(parse_target(str(folder)), parse_target(str(tmp_path))).comparisons
    (sentence,) = found.difference.newcomers
    assert "97 × acme::fused_ar_rms a step stand where the other side has as many all-reduces" in sentence


@needs_traces
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("vllm-cpu-tp4-nemotron/latent-reduce-on", "vllm-cpu-tp4-nemotron/latent-reduce-skipped"),
        ("sglang-tp4-gb300-nccl", "sglang-tp4-gb300-fused"),
    ],
)
def test_nothing_came_in_the_place_of_what_was_really_saved(first: str, second: str) -> None:
    (found,) = compare_targets(
        parse_target(str(trace_folder(first))), parse_target(str(trace_folder(second)))
    ).comparisons
    assert found.difference.newcomers == ()
    assert found.base.suspects == found.arm.suspects == ()
