"""Only the very process that is meant is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from mtpprof.errors import RunError
from mtpprof.rundir import holder
from mtpprof.rundir.holder import Holder, interrupt, this_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process is told from another")
PROGRAM = """
import msgspec, sys, time
from mtpprof.rundir.holder import this_process
print(msgspec.json.encode(this_process()).decode(), flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], Holder]]:
    """Another process, and what it says of itself."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, msgspec.json.decode(process.stdout.readline(), type=Holder)
        finally:
            process.kill()


def test_a_process_is_interrupted(other: tuple[subprocess.Popen[str], Holder]) -> None:
    process, said = other
    assert said.pid == process.pid
    interrupt(said)
    assert process.wait(30) == 130


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"host": "elsewhere"}, "on elsewhere; stop it from there"),
        ({"boot": "an earlier one"}, "not to be seen from here"),
        ({"namespace": "pid:[1]"}, "another container"),
        ({"started": "1"}, "belongs to another one now"),
        ({"started": ""}, "does not tell"),
    ],
)
def test_any_other_process_is_left_alone(
    other: tuple[subprocess.Popen[str], Holder],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    why: str,
) -> None:
    process, said = other
    sent: list[int] = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: sent.append(1))
    with pytest.raises(RunError, match=why.replace("(", r"\(")):
        interrupt(msgspec.structs.replace(said, **change))
    assert sent == []
    assert process.poll() is None


def test_a_process_that_is_gone_is_said_to_be(other: tuple[subprocess.Popen[str], Holder]) -> None:
    process, said = other
    process.kill()
    process.wait(30)
    with pytest.raises(RunError, match="is gone"):
        interrupt(said)


def test_a_process_of_another_user_is_named(
    other: tuple[subprocess.Popen[str], Holder], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    with pytest.raises(RunError, match="another user"):
        interrupt(other[1])


def test_a_name_with_brackets_and_blanks_does_not_hide_the_start(tmp_path: Any, monkeypatch: Any) -> None:
    folder = tmp_path / str(os.getpid())
    folder.mkdir()
    fields = " ".join(["S", *(str(number) for number in range(1, 30))])
    (folder / "stat").write_text(f"{os.getpid()} (odd ) name) {fields}\n")
    monkeypatch.setattr(holder, "PROC", tmp_path)
    assert this_process().started == "19"
