"""The launch form: the command line it stands for, what it would do, where it goes."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from mtpprof.cli.tui.launch_form import LaunchForm, command_text
from mtpprof.cli.tui.sources import last_sentence
from mtpprof.cli.tui.started_run import StartedRun, run_folder
from mtpprof.errors import RunError, UsageError


def test_an_empty_form_is_the_plain_command() -> None:
    assert command_text(LaunchForm().words()) == "mtpprof run --tp 4"


def test_every_field_is_on_the_command_line() -> None:
    form = LaunchForm(
        models="glm-5.2, kimi-k2",
        tp="2",
        concurrency="1 16",
        draft_tokens="5",
        settings={"local-argmax": "on", "commutative-reduce": "both"},
        more="--name 'a b'",
    )
    assert command_text(form.words()) == (
        "mtpprof run --tp 2 --model glm-5.2 --model kimi-k2 --concurrency 1 --concurrency 16 --draft-tokens 5 "
        "--opt local-argmax=on --opt commutative-reduce=both --name 'a b'"
    )


def test_switches_that_all_say_both_are_the_default() -> None:
    assert LaunchForm(settings={"local-argmax": "both"}).words() == ["run", "--tp", "4"]


@pytest.mark.parametrize(
    "form",
    [
        LaunchForm(tp=""),
        LaunchForm(tp="x"),
        LaunchForm(concurrency="1 -2"),
        LaunchForm(more="'"),
        LaunchForm(draft_tokens="²"),
    ],
)
def test_what_cannot_be_read_is_said(form: LaunchForm) -> None:
    with pytest.raises(UsageError):
        form.words()


def test_where_a_run_goes() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert run_folder(["run", "--tp", "4"], now) == Path("runs/20260102T030405Z-run").absolute()
    assert run_folder(["run", "--model", "a/b.json", "--model", "c"], now).name == "20260102T030405Z-b.json-c"
    assert run_folder(["run", "--out", "x"], now) == Path("x").absolute()
    assert run_folder(["run", "--out=x"], now) == Path("x").absolute()
    assert run_folder(["run", "--resume", "/y"], now) == Path("/y")


def test_a_command_that_fails_leaves_its_words(tmp_path: Path) -> None:
    started = StartedRun(["run", "--tp", "0", "--out", str(tmp_path / "run")])
    while started.wait(0.1):
        pass
    assert started.exit_code == 2
    assert "--tp 0" in started.last_words()
    started.stop()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be started"):
        StartedRun(["run", "--out", str(tmp_path / "file" / "run")])


def test_of_a_box_the_sentence_inside_is_said() -> None:
    text = "Usage: x\n╭─ Error ───────╮\n│ Invalid value │\n│ for '--tp'.   │\n╰───────────────╯\n"
    assert last_sentence(text) == "Invalid value for '--tp'."
    assert last_sentence(text + "mtpprof: --tp 0: no.\n") == "--tp 0: no."
    assert last_sentence("\n") == ""


def test_a_refused_start_leaves_its_words_and_no_file(tmp_path: Path) -> None:
    started = StartedRun(["run", "--nope", "--out", str(tmp_path / "run")])
    while started.wait(0.1):
        pass
    started.move_log()
    assert started.last_words().startswith("No such option: --nope")
    assert list(tmp_path.iterdir()) == []
