"""What is quoted of a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtpprof.rundir import logs

MARKER = "USDT:2026-11-29 17:29:15 8074:8074 SyncActivityProfilerHandler.cpp:52] profiler_start"


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("one\ntwo\n\n", "two"),
        (f"one\n{MARKER}\n", "one"),
        (f"{MARKER}\n", None),
        ("", None),
        ("x" * 1000, "x" * logs.QUOTED_CHARACTERS),
        ("said\n" + "\n" * logs.TAIL_BYTES, None),
        (b"\xff\xfe broken".decode("latin-1"), "ÿþ broken"),
    ],
)
def test_the_last_line_is_the_last_that_says_something(tmp_path: Path, text: str, last: str | None) -> None:
    path = tmp_path / "log"
    path.write_text(text, encoding="utf-8")
    assert logs.last_line(path) == last


def test_a_log_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert logs.tail(tmp_path / "none") == ""
    assert logs.last_line(tmp_path) is None
