"""What reports, comparisons and analyses look like in each format, byte for byte."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from mtpprof.analyzers.answers.run_report import Report, make_report
from mtpprof.analyzers.compare.targets import compare_targets, parse_target
from mtpprof.cli.app import app
from mtpprof.cli.render.format_names import ReportFormat
from mtpprof.cli.render.formats import COMPARISONS, REPORTS
from mtpprof.rundir.directory import TIMING_FILE, RunDirectory
from mtpprof.rundir.records import EngineMetrics, TimingRecord
from tests.golden import Golden
from tests.runs import Ledger, Recipe, write_run
from tests.unit.analyzers.calls.test_unknown_names import hidden

FORMATS = [style for style in ReportFormat if style is not ReportFormat.JSON]
"""JSON is held by its published schema."""
DRAFTED = Recipe(
    models=("deepseek-v3.2",),
    rounds=3,
    steps=3,
    profile_steps=2,
    name="drafted",
    speed=lambda arm: 0.9 if arm in ("local-argmax", "all-on") else 1.0,
    seen=lambda arm, ledger: _without_last(ledger) if arm == "allreduce-norm-fusion" else ledger,
    tokens=lambda arm, tokens: [*tokens[:5], 1001, *tokens[6:]] if arm == "all-on" else tokens,
)
LATENT = Recipe(models=("nemotron-3-super",), rounds=2, steps=3, profile_steps=2, name="latent")


def _without_last(ledger: Ledger) -> Ledger:
    return ledger[:-1]


def _with_metrics(run: RunDirectory) -> RunDirectory:
    """The run with the counters of an engine beside each window."""
    (case,) = run.run().cases
    for arm in case.arms:
        path = run.arm(case.id, arm.name) / TIMING_FILE
        timing = msgspec.json.decode(path.read_bytes(), type=TimingRecord)
        metrics = EngineMetrics(
            steps=4, generation_tokens=16, drafts=8, draft_tokens=24, accepted_tokens=8, inter_token_ns=1e7
        )
        rounds = [msgspec.structs.replace(window, metrics=metrics) for window in timing.rounds]
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(timing, rounds=rounds)))
    return run


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Drafts, engine counters, effects, an arm that differs from its ledger and one with other tokens."""
    return _with_metrics(write_run(tmp_path_factory.mktemp("runs") / "drafted", DRAFTED))


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """No drafts; in one arm nobody knows the names of some collectives, so its figures are lower bounds."""
    made = write_run(tmp_path_factory.mktemp("runs") / "latent", LATENT)
    return hidden(made, "commutative-reduce", "layers.3")


@pytest.fixture(scope="module")
def report(drafted: RunDirectory, latent: RunDirectory) -> Report:
    """Both runs as the cases of one report."""
    first, second = make_report(drafted), make_report(latent)
    return msgspec.structs.replace(
        first, cases=[*first.cases, *second.cases], notes=[*first.notes, *second.notes]
    )


@pytest.mark.parametrize("style", FORMATS)
def test_report(
    style: ReportFormat, report: Report, golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    REPORTS[style](report)
    golden.check(f"report.{style}", capsys.readouterr().out)


@pytest.mark.parametrize("style", FORMATS)
def test_comparison(
    style: ReportFormat,
    latent: RunDirectory,
    drafted: RunDirectory,
    golden: Golden,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for run, name in ((drafted, "all-on"), (latent, "commutative-reduce")):
        base, arm = (parse_target(f"{run.root}:{side}") for side in ("baseline", name))
        COMPARISONS[style](compare_targets(base, arm))
    golden.check(f"comparison.{style}", capsys.readouterr().out)


@pytest.mark.parametrize("style", ["table", "csv", "md"])
def test_analysis(
    style: str, latent: RunDirectory, golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (case,) = latent.run().cases
    monkeypatch.chdir(latent.arm(case.id, "commutative-reduce").parent)
    words = ["analyze", "commutative-reduce", "--by", "kind,phase,size", "--show", "all"]
    answer = CliRunner().invoke(app, [*words, "--format", style])
    assert answer.exit_code == 0, answer.output
    golden.check(f"analysis.{style}", answer.stdout)
