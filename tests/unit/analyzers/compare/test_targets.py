"""Whose model a side is held against, and what stands in the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mtpprof.analyzers.calls.attribution import ReadOptions
from mtpprof.analyzers.compare.side import side_of, trace_side
from mtpprof.analyzers.compare.targets import Comparison, compare_targets, parse_target
from mtpprof.errors import InputError, UsageError
from mtpprof.models.presets import load_preset
from mtpprof.models.spec import ModelSpec, Scale
from mtpprof.rundir.directory import RunDirectory
from tests.runs import Recipe, write_run
from tests.traces import needs_traces, trace_folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return write_run(tmp_path_factory.mktemp("run") / "made", Recipe())


def compared(first: str, second: str, spec: ModelSpec | None = None) -> Comparison:
    (only,) = compare_targets(parse_target(first), parse_target(second), ReadOptions(model=spec)).comparisons
    return only


def test_a_capture_whose_messages_are_as_wide_as_the_runs_gets_its_model_and_it_is_said(
    made: RunDirectory,
) -> None:
    case = made.run().cases[1].id
    found = compared(f"{made.root}:{case}/commutative-reduce", str(made.arm(case, "baseline")))
    assert any("does not tell the rows" in reason for reason in found.arm.unchecked), (
        "it has the model's ledger"
    )
    assert "nemotron-3-super (tiny), the model of commutative-reduce, which is taken for it" in found.arm.note
    assert found.base.note == ""


def test_a_capture_that_the_runs_model_cannot_have_made_is_compared_without_it(
    made: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(spec: ModelSpec, tp: int) -> None:
        if tp == 4:
            raise UsageError("--tp 4 does not divide it.")

    wider = write_run(tmp_path / "wider", Recipe(models=("nemotron-3-super",), tp=4))
    run = f"{made.root}:{made.run().cases[1].id}/commutative-reduce"
    capture = str(wider.arm(wider.run().cases[0].id, "baseline"))
    assert compared(run, capture).arm.note.endswith("which is taken for it")
    monkeypatch.setattr(ModelSpec, "check_tp", refuse)
    assert compared(run, capture).arm.note == (
        "--tp 4 does not divide it: not held against the ledger of commutative-reduce; give --model"
    )


def test_a_capture_of_another_model_does_not_get_the_runs(made: RunDirectory, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", Recipe(models=("kimi-k3",)))
    case, theirs = made.run().cases[1].id, other.run().cases[0].id
    found = compared(f"{made.root}:{case}/baseline", str(other.arm(theirs, "baseline")))
    assert (found.arm.excess, found.arm.ledger, found.arm.unchecked) == ([], {}, [])
    assert "not held against the ledger of baseline; give --model" in found.arm.note
    assert [entry.what for entry in found.base.excess] == ["redundant"]


@needs_traces
def test_a_real_capture_is_not_held_against_the_runs_model(made: RunDirectory) -> None:
    case = made.run().cases[1].id
    capture = trace_folder("vllm-cpu-tp4-nemotron") / "latent-reduce-on"
    found = compared(str(capture), f"{made.root}:{case}/baseline")
    assert (found.base.excess, found.base.ledger) == ([], {})
    assert found.base.note.startswith(
        "all-reduces are 128 wide, and those of nemotron-3-super 64 or 256: not held"
    )


@needs_traces
def test_a_model_that_is_not_the_captures_is_refused() -> None:
    folder = trace_folder("vllm-cpu-tp4-nemotron")
    with pytest.raises(
        InputError, match=r"messages are 256 wide, .* is 4096: not this model; give .*--model"
    ):
        compared(
            str(folder / "latent-reduce-on"),
            str(folder / "latent-reduce-skipped"),
            load_preset("nemotron-3-super", Scale.FULL),
        )


def test_of_traces_without_calls_the_device_is_not_known(made: RunDirectory) -> None:
    case = made.run().cases[1].id
    side = trace_side([made.arm(case, "baseline")], "x")
    assert side.traces is not None
    assert side.device == "cpu"
    nothing = side.traces.calls.take(np.zeros(0, np.int64))
    assert side_of(replace(side.traces, calls=nothing), "x").device == ""
