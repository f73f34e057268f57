"""What is said of a launch is what the run will do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mtpprof.analyzers.live.run_state import total_windows
from mtpprof.cli.commands.run import read_options
from mtpprof.cli.tui.launch_form import LaunchForm
from mtpprof.cli.tui.plan_preview import preview
from mtpprof.profilers.run import start_run


@pytest.mark.parametrize(
    "form",
    [
        LaunchForm(tp="2"),
        LaunchForm(tp="2", more="--rounds 5"),
        LaunchForm(tp="2", models="deepseek-v3.2", concurrency="1,2", more="--arms one-at-a-time --rounds 2"),
        LaunchForm(tp="2", models="deepseek-v3.2", more="--model nemotron-3-super --opt local-argmax=both"),
        LaunchForm(tp="2", settings={"local-argmax": "on", "allreduce-norm-fusion": "both"}),
        LaunchForm(tp="4", more="--tp 2 --concurrency 3"),
    ],
)
def test_windows_are_those_of_the_run(form: LaunchForm, tmp_path: Path) -> None:
    record, _ = start_run(read_options([*form.words()[1:], "--out", str(tmp_path / "run")]))
    found = preview(form, read_options)
    assert found.ok, found.sentence
    arms = sum(len(case.arms) for case in record.cases)
    assert found.sentence == (
        f"engine {record.engine} on {record.device}: {len(record.cases)} cases, {arms} arms, "
        f"{total_windows(record)} windows"
    )


def test_a_plan_file_counts_too(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text("rounds = 7\n")
    plain, changed = (
        preview(LaunchForm(models="nemotron-3-super", more=more), read_options)
        for more in ("", f"--config {tmp_path / 'plan.toml'}")
    )
    counts = [int(re.search(r"(\d+) windows", found.sentence)[1]) for found in (plain, changed)]  # type: ignore[index]
    assert counts == [22, 46]


def test_eligibility_comes_with_its_reason() -> None:
    found = preview(LaunchForm(tp="2", models="deepseek-v3.2"), read_options)
    assert found.ok
    assert "2 cases, 10 arms" in found.sentence
    assert found.eligible["local-argmax"] == (True, "deepseek-v3.2")
    able, why = found.eligible["commutative-reduce"]
    assert not able
    assert "latent" in why


@pytest.mark.parametrize("models", ["nosuch", "deepseek-v3.2,,/does/not/exist.json", "[/bold]"])
def test_an_unknown_model_is_a_sentence(models: str) -> None:
    found = preview(LaunchForm(models=models), read_options)
    assert not found.ok
    assert found.sentence.endswith(".")


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (LaunchForm(tp=""), "TP is empty"),
        (LaunchForm(more="'"), "more options"),
        (LaunchForm(more="--nosuch 1"), "--nosuch"),
        (LaunchForm(more="--rounds many"), "--rounds"),
        (LaunchForm(more="--steps 0"), "--steps 0"),
        (LaunchForm(more="--opt local-argmax=perhaps"), "local-argmax=perhaps"),
        (LaunchForm(more="--acceptance-length 99"), "--acceptance-length"),
        (LaunchForm(more="--vllm-arg a=b"), "--vllm-arg"),
        (LaunchForm(more="--config /no/such.toml"), "/no/such.toml"),
        (LaunchForm(more="--resume somewhere"), "--resume"),
        (LaunchForm(more="--help"), "--help"),
        (LaunchForm(more="astray"), "astray"),
    ],
)
def test_what_the_run_would_refuse_is_said(form: LaunchForm, says: str) -> None:
    found = preview(form, read_options)
    assert not found.ok
    assert says in found.sentence
