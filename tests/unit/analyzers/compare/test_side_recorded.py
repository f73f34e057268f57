"""Traces of a run that are damaged, cut off or in another's place: never held against the ledger."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import typer

from mtpprof.analyzers.answers.run_report import ArmReport, Report, make_report
from mtpprof.cli.commands.report import show_report
from mtpprof.cli.render.format_names import ReportFormat
from mtpprof.profilers.experiment import remaining
from mtpprof.rundir.directory import OUTPUTS_FILE, TIMING_FILE, RunDirectory
from mtpprof.rundir.records import Status
from tests.runs import Recipe, write_run

ARM = "baseline"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = Recipe(models=("nemotron-3-super",), rounds=2, steps=2, profile_steps=1)
    return write_run(tmp_path_factory.mktemp("made") / "run", recipe).root


@pytest.fixture
def run(made: Path, tmp_path: Path) -> RunDirectory:
    shutil.copytree(made, tmp_path / "run")
    return RunDirectory(tmp_path / "run")


def traces(run: RunDirectory) -> list[Path]:
    return [run.trace(run.run().cases[0].id, ARM, rank) for rank in range(2)]


def arms(report: Report) -> dict[str, ArmReport]:
    return {arm.name: arm for arm in report.cases[0].arms}


def cut(first: Path, second: Path) -> None:
    first.write_bytes(first.read_bytes()[: first.stat().st_size // 2])


def emptied(first: Path, second: Path) -> None:
    first.write_bytes(b"")


def both_emptied(first: Path, second: Path) -> None:
    emptied(first, second)
    emptied(second, first)


def overwritten(first: Path, second: Path) -> None:
    shutil.copy(second, first)


def swapped(first: Path, second: Path) -> None:
    text = second.read_bytes()
    shutil.copy(first, second)
    first.write_bytes(text)


def of_an_earlier_run(first: Path, second: Path) -> None:
    """A copy of the other rank's, from an hour before."""
    content = json.loads(gzip.decompress(second.read_bytes()))
    content["baseTimeNanoseconds"] -= 3600 * 10**9
    first.write_bytes(gzip.compress(json.dumps(content).encode()))


def with_lost_events(first: Path, second: Path) -> None:
    content = json.loads(gzip.decompress(first.read_bytes()))
    content["traceEvents"][3]["ts"] = None
    first.write_bytes(gzip.compress(json.dumps(content).encode()))


def altered(first: Path, second: Path) -> None:
    data = bytearray(first.read_bytes())
    data[-6] ^= 0xFF  # of the checksum
    first.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, "rank0.pt.trace.json.gz: its compressed data ends in the middle"),
        (emptied, "rank0.pt.trace.json.gz: is empty"),
        (both_emptied, "rank0.pt.trace.json.gz: is empty"),
        (overwritten, "rank0.pt.trace.json.gz: it says that it is rank 1, and stands in the place of rank 0"),
        (swapped, "rank1.pt.trace.json.gz: it says that it is rank 0, and stands in the place of rank 1"),
        (of_an_earlier_run, "rank0.pt.trace.json.gz: it says that it is rank 1"),
        (with_lost_events, "rank0.pt.trace.json.gz: 1 events have no usable start time"),
        (altered, "its compressed data is damaged"),
    ],
)
def test_a_damaged_trace_withholds_its_arm_and_nothing_else(
    run: RunDirectory, damage: Callable[[Path, Path], None], said: str
) -> None:
    damage(*traces(run))
    report = make_report(run)
    broken, *others = (arms(report)[ARM], *(arm for name, arm in arms(report).items() if name != ARM))
    assert broken.as_expected is None
    assert (broken.groups, broken.mismatches, broken.totals) == ([], [], None)
    assert said in (broken.missing or "")
    assert broken.damaged
    assert all(arm.as_expected and not arm.damaged for arm in others if arm.repeats is None)
    assert report.as_expected
    assert [sentence.startswith(f"{report.cases[0].id}, {ARM}: ") for sentence in report.damaged] == [True]


def test_a_rank_whose_trace_is_a_copy_of_anothers_is_named(run: RunDirectory) -> None:
    first, second = traces(run)
    shutil.copy(first, second)
    missing = arms(make_report(run))[ARM].missing or ""
    assert "rank1.pt.trace.json.gz" in missing
    assert "rank 0" in missing


def test_a_run_whose_traces_are_whole_has_none(run: RunDirectory) -> None:
    report = make_report(run)
    assert report.damaged == []
    assert not any(arm.damaged for arm in arms(report).values())


@pytest.mark.parametrize("status", ["complete", "interrupted"])
@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("rank0.pt.trace.json.gz", "no trace of rank 0"),
        (TIMING_FILE, "0 of 2 rounds timed"),
        (OUTPUTS_FILE, "outputs of 0 of 2 rounds"),
    ],
)
def test_what_is_gone_is_damage_in_a_complete_run_only(
    run: RunDirectory, status: Status, gone: str, said: str
) -> None:
    run.write_run(msgspec.structs.replace(run.run(), status=status))
    (run.arm(run.run().cases[0].id, ARM) / gone).unlink()
    report = make_report(run)
    assert arms(report)[ARM].missing == said
    assert [name for name, arm in arms(report).items() if arm.damaged] == [ARM] * (status == "complete")
    assert len(report.damaged) == (status == "complete")


@pytest.mark.parametrize("name", [TIMING_FILE, OUTPUTS_FILE])
@pytest.mark.parametrize(
    "text", ["", '{"schema_version": 1', '{"schema_version": 1}', '{"schema_version": 99}']
)
def test_a_damaged_file_beside_the_traces_withholds_what_it_holds_and_nothing_else(
    run: RunDirectory, name: str, text: str
) -> None:
    whole = arms(make_report(run))
    file = run.arm(run.run().cases[0].id, ARM) / name
    file.write_text(text)
    report = make_report(run)
    broken = arms(report)[ARM]
    assert (broken.missing or "").startswith(f"{file}: ")
    assert "Record" not in (broken.missing or "")
    assert broken.damaged
    assert (broken.step is None, broken.acceptance is None) == (name == TIMING_FILE, name == OUTPUTS_FILE)
    assert (broken.groups, broken.totals, broken.as_expected) == (whole[ARM].groups, whole[ARM].totals, True)
    assert len(report.damaged) == 1
    assert all(whole[other].groups == arm.groups for other, arm in arms(report).items())
    caveats = [text for difference in report.cases[0].differences for text in difference.caveats]
    assert any(str(file) in text for text in caveats)


def test_a_damaged_repeat_is_named_and_leaves_the_noise_unknown(run: RunDirectory) -> None:
    (run.arm(run.run().cases[0].id, f"{ARM}-repeat") / TIMING_FILE).write_text("{")
    report = make_report(run)
    assert [name for name, arm in arms(report).items() if arm.damaged] == [f"{ARM}-repeat"]
    assert all(difference.step.noise is None for difference in report.cases[0].differences)


def test_what_a_damaged_file_held_is_measured_again(run: RunDirectory) -> None:
    case = run.run().cases[0]
    assert remaining(case, run).count == 0
    for name in (TIMING_FILE, OUTPUTS_FILE):
        file = run.arm(case.id, ARM) / name
        text = file.read_bytes()
        file.write_bytes(text[:-20])
        assert [(number, arm) for number, _, arm in remaining(case, run).visits] == [(0, ARM), (1, ARM)]
        file.write_bytes(text)


def test_the_report_of_a_damaged_run_is_shown_and_ends_with_3(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    cut(*traces(run))
    with pytest.raises(typer.Exit) as caught:
        show_report(run, ReportFormat.TABLE)
    assert caught.value.exit_code == 3
    shown = capsys.readouterr()
    assert "ends in the middle" in shown.err
    assert "NOT AS EXPECTED" not in shown.out
    assert run.run().cases[0].id in shown.out
