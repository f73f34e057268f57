"""The published schemas: current, valid, and what the answers follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from mtpprof.analyzers.answers.analysis import analysis_of
from mtpprof.analyzers.answers.budget import check_budget
from mtpprof.analyzers.answers.budget_file import make_budget
from mtpprof.analyzers.answers.run_report import make_report
from mtpprof.analyzers.answers.schemas import answers, published_schema, schema_text
from mtpprof.analyzers.calls.attribution import ReadOptions, Window, analyze
from mtpprof.analyzers.compare.targets import compare_targets, parse_target, sides_of
from mtpprof.analyzers.predict.predict import PredictionReport, predict
from mtpprof.analyzers.predict.published import PublishedReport, hold_against_published
from mtpprof.analyzers.traces.discover import open_traces
from mtpprof.models.hardware import load_profile
from mtpprof.models.ledger import Workload
from mtpprof.models.presets import load_preset
from mtpprof.models.spec import Scale
from mtpprof.rundir.directory import RunDirectory
from tests.runs import Recipe, write_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return write_run(tmp_path_factory.mktemp("run") / "made", Recipe(profile_steps=1))


def follows(answer: Any, name: str) -> None:
    value = json.loads(msgspec.json.encode(answer))
    jsonschema.Draft202012Validator(published_schema(name)).validate(value)


@pytest.mark.parametrize("name", sorted(answers()))
def test_the_published_schema_is_current_and_valid(name: str) -> None:
    schema = published_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert json.loads(schema_text(name)) == schema, "run python -m mtpprof.analyzers.answers.schemas"


def test_reports_follow_their_schema(made: RunDirectory, tmp_path: Path) -> None:
    follows(make_report(made), "report")
    unfinished = write_run(tmp_path / "run", Recipe(rounds=1, status="interrupted", profile_steps=1))
    case = unfinished.run().cases[0]
    for path in unfinished.root.glob(f"{case.id}/*/rank*.gz"):
        path.unlink()
    for path in unfinished.root.glob(f"{case.id}/*/*.json"):
        path.unlink()
    follows(make_report(unfinished), "report")


def test_analyses_follow_theirs(made: RunDirectory) -> None:
    case = made.run().cases[0]
    (traces,) = open_traces([made.arm(case.id, "baseline")])
    found = analyze(traces)
    follows([analysis_of(found, ("kind", "rank"))], "analysis")
    follows(
        [analysis_of(analyze(traces, ReadOptions(window=Window(first_step=1000))), ("step",))], "analysis"
    )


def test_comparisons_checks_and_predictions_follow_theirs(made: RunDirectory) -> None:
    base, arm = (parse_target(f"{made.root}:{name}") for name in ("baseline", "all-on"))
    follows(compare_targets(base, arm), "comparison")
    sides = sides_of(parse_target(str(made.root)))
    follows(check_budget(make_budget(sides, time=True), sides), "check")
    workload = Workload(concurrency=1, draft_tokens=3, tp=8)
    prediction = predict(load_preset("deepseek-v3.2", Scale.FULL), workload, load_profile("h200"))
    follows(PredictionReport(predictions=[prediction]), "prediction")
    follows(PublishedReport(results=list(hold_against_published())), "published")


def test_an_answer_without_its_version_does_not_follow(made: RunDirectory) -> None:
    value = json.loads(msgspec.json.encode(make_report(made)))
    del value["schema_version"]
    with pytest.raises(jsonschema.ValidationError, match="schema_version"):
        jsonschema.validate(value, published_schema("report"))
