"""What the dashboard is opened on: stored answers, traces of anybody, commands that fail."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import msgspec
import pytest

from mtpprof.analyzers.answers.run_report import make_report
from mtpprof.analyzers.calls.attribution import ReadOptions
from mtpprof.cli.tui import exports, sources
from mtpprof.errors import InputError, RunError, UsageError
from mtpprof.rundir.directory import REPORT_FILE, RunDirectory
from tests.runs import Recipe, write_run
from tests.unit.analyzers.calls.test_unknown_names import hidden, told

PLAIN = sources.Reading()
READING = sources.Reading(
    words_for_run=("--rules", "r.toml"), words_for_traces=("--rules", "r.toml", "--model", "m")
)
SMALL = Recipe(models=("nemotron-3-super",), rounds=2, steps=2, profile_steps=2)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    found = write_run(tmp_path / "run", SMALL)
    found.write(found.root / REPORT_FILE, make_report(found))
    return found


def answering(returncode: int, out: str = "", err: str = "") -> sources.RunCommand:
    def command(words: Sequence[str]) -> CompletedProcess[str]:
        return CompletedProcess(list(words), returncode, out, err)

    return command


def test_the_stored_answer_is_taken_while_it_is_of_this_run(directory: RunDirectory) -> None:
    record = directory.run()
    answer = sources.stored_answer(directory, record)
    assert answer is not None
    assert list(answer.differences) == [case.id for case in record.cases]
    other = msgspec.structs.replace(record, id="another")
    assert sources.stored_answer(directory, other) is None
    failed = msgspec.structs.replace(record, status="failed")
    assert sources.stored_answer(directory, failed) is None


def test_an_answer_older_than_its_run_or_damaged_is_none(directory: RunDirectory) -> None:
    record = directory.run()
    os.utime(directory.root / REPORT_FILE, (1, 1))
    assert sources.stored_answer(directory, record) is None
    (directory.root / REPORT_FILE).write_text("{")
    assert sources.stored_answer(directory, record) is None


def test_a_computed_answer_is_the_commands(directory: RunDirectory) -> None:
    text = (directory.root / REPORT_FILE).read_text()
    answer = sources.computed_answer(directory, answering(0, text), PLAIN)
    assert answer == sources.stored_answer(directory, directory.run())
    assert (
        sources.computed_answer(directory, answering(3, text, "mtpprof: an arm is damaged."), PLAIN) == answer
    )
    with pytest.raises(InputError, match="is broken"):
        sources.computed_answer(directory, answering(3, "", "noise\nmtpprof: x is broken.\n"), PLAIN)
    with pytest.raises(RunError):
        sources.computed_answer(directory, answering(0, "no json"), PLAIN)


def test_traces_of_anybody_are_sides(directory: RunDirectory) -> None:
    case = directory.run().cases[0].id
    paths = [directory.arm(case, "baseline"), directory.arm(case, "commutative-reduce")]
    opened = sources.open_anything(paths, PLAIN.options)
    assert [side.label for side in opened.sides] == ["baseline", "commutative-reduce"]
    assert [side.label for side in sources.open_anything(paths[::-1], PLAIN.options).sides] == [
        "commutative-reduce",
        "baseline",
    ]
    answer = sources.answer_of_traces(opened)
    (difference,) = answer.differences[sources.TRACES]
    assert difference.calls is not None
    assert difference.calls < 0
    with pytest.raises(InputError):
        sources.open_anything([directory.root / "nosuch"], PLAIN.options)


def test_rules_of_ones_own_settle_what_a_side_counts(directory: RunDirectory, tmp_path: Path) -> None:
    run = hidden(directory, "commutative-reduce", "layers.3")
    case = run.run().cases[0].id
    for rules, exact in (((), False), (told(tmp_path), True)):
        options = ReadOptions(rules=rules)
        loaded = sources.load_side(run, run.run(), case, "commutative-reduce", options)
        assert (loaded.side.doubt == "") is exact
        (opened,) = sources.open_anything([run.arm(case, "commutative-reduce")], options).sides
        assert (opened.doubt == "") is exact


def test_exports_are_commands_with_their_own_sentences(directory: RunDirectory) -> None:
    said: list[list[str]] = []

    def command(words: Sequence[str]) -> CompletedProcess[str]:
        said.append(list(words))
        return CompletedProcess(list(words), 0, "text", "")

    chosen = exports.Chosen(run=directory.root, traces=(), case="a/../b", a="baseline", b="x")
    assert "a-..-b-baseline-x.pftrace" in exports.export_perfetto(command, chosen, PLAIN)
    assert said[-1][-5:] == ["--case", "a/../b", "--compare", "baseline", "x"]
    assert exports.export_report(command, directory.root, "md", READING).endswith("report.md.")
    assert said[-1] == ["report", str(directory.root), "--rules", "r.toml", "--format", "md"]
    assert (directory.root / "report.md").read_text() == "text"
    assert exports.compare_with(command, directory.root, "other") == "text"
    traces = exports.Chosen(run=None, traces=(Path("x"),), case=None, a=None, b=None)
    exports.export_perfetto(command, traces, READING)
    assert said[-1][:6] == ["export", "x", "--rules", "r.toml", "--model", "m"]
    with pytest.raises(InputError, match="no such run"):
        exports.compare_with(answering(3, "", "mtpprof: no such run"), directory.root, "other")
    with pytest.raises(UsageError):
        exports.export_report(command, None, "md", PLAIN)
    with pytest.raises(UsageError):
        exports.export_perfetto(
            command, exports.Chosen(run=None, traces=(), case=None, a=None, b=None), PLAIN
        )


def test_traffic_is_expected_by_the_ledger_until_it_is_seen(directory: RunDirectory) -> None:
    record = directory.run()
    (case,) = record.cases
    found = sources.arm_traffic(directory, record, [])
    assert set(found) == {(case.id, arm.name) for arm in case.arms}
    base, changed = (found[case.id, name] for name in ("baseline", "commutative-reduce"))
    assert base.seen is None
    assert base.expected is not None
    assert changed.expected is not None
    assert changed.expected.calls < base.expected.calls


def test_traffic_of_a_model_that_cannot_be_read_is_not_known(directory: RunDirectory) -> None:
    record = directory.run()
    damaged = msgspec.structs.replace(record.cases[0], model={})
    found = sources.arm_traffic(directory, msgspec.structs.replace(record, cases=[damaged]), [])
    assert {(item.expected, item.seen) for item in found.values()} == {(None, None)}


@pytest.mark.parametrize("newer", [{"dtype": "fp3"}, {"tp": 7}, {"switch": "of-tomorrow"}])
def test_traffic_of_what_a_newer_mtpprof_recorded_is_not_known(
    directory: RunDirectory, newer: dict[str, Any]
) -> None:
    record = directory.run()
    (case,) = record.cases
    if "switch" in newer:
        newer = {"arms": [msgspec.structs.replace(arm, enabled=[newer["switch"]]) for arm in case.arms]}
    other = msgspec.structs.replace(case, **newer)
    found = sources.arm_traffic(directory, msgspec.structs.replace(record, cases=[other]), [])
    assert {item.expected for item in found.values()} == {None}
