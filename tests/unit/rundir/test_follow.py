"""Following a run directory that grows, is damaged, or is not there yet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mtpprof.analyzers.live.run_state import LiveState, advance
from mtpprof.rundir.directory import RunDirectory
from mtpprof.rundir.follow import FIRST_LOG_BYTES, MAX_LOG_BYTES, RunFollower, Update
from tests.runs import Recipe, write_run

SMALL = Recipe(models=("nemotron-3-super",), rounds=1, steps=1, profile_steps=1)


def test_what_is_new_comes_once(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", SMALL)
    directory.append_event("workers_ready", ranks=2)
    follower = RunFollower(directory)
    first = follower.poll()
    assert first is not None
    assert first.record is not None
    assert [event["event"] for event in first.events] == ["workers_ready"]
    assert follower.poll() is None
    directory.append_event("rank", rank=0, doing="x")
    again = follower.poll()
    assert again is not None
    assert again.record is None
    assert len(again.events) == 1


def test_lines_of_events_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", SMALL)
    (directory.root / "events.jsonl").write_bytes(b"garbage\n\xff{\n[1]\nno end yet")
    follower = RunFollower(directory)
    first = follower.poll()
    assert first is not None
    assert (first.events, first.unreadable) == ((), 3)
    assert follower.poll() is None
    live = advance(advance(LiveState(), (), first.unreadable), ())
    assert live.damage.startswith("3 lines of events.jsonl could not be read")


def test_a_killed_run_is_seen_although_nothing_was_written(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", replace(SMALL, status="running"))
    follower = RunFollower(directory)
    with directory.locked():
        first = follower.poll()
        assert first is not None
        assert first.record is not None
        assert first.record.status == "running"
        assert follower.poll() is None
    gone = follower.poll()
    assert gone is not None
    assert gone.record is not None
    assert gone.record.status == "interrupted"
    assert follower.poll() is None


def test_a_run_that_is_not_there_yet_is_a_problem_told_once(tmp_path: Path) -> None:
    follower = RunFollower(RunDirectory(tmp_path))
    first = follower.poll()
    assert first is not None
    assert "run.json" in (first.problem or "")
    assert follower.poll() is None
    write_run(tmp_path, SMALL)
    found = follower.poll()
    assert found is not None
    assert found.record is not None


def test_a_record_that_breaks_is_a_problem_and_one_that_heals_a_record(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", SMALL)
    follower = RunFollower(directory)
    follower.poll()
    whole = (directory.root / "run.json").read_bytes()
    (directory.root / "run.json").write_bytes(whole[:100])
    broken = follower.poll()
    assert broken is not None
    assert "damaged" in (broken.problem or "")
    (directory.root / "run.json").unlink()
    (directory.root / "run.json").write_bytes(whole)
    healed = follower.poll()
    assert healed is not None
    assert healed.record is not None


def test_log_lines_are_whole_and_without_escapes(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", SMALL)
    log = directory.log(0)
    log.parent.mkdir()
    log.write_bytes(b"\x1b[1;31mred\x1b[0m\r\n\x1b]0;title\x07half")
    follower = RunFollower(directory)
    update = follower.poll()
    assert update is not None
    assert update.log_lines == ("rank0: red",)
    with log.open("ab") as stream:
        stream.write("line \xff\n".encode("latin-1"))
    update = follower.poll()
    assert update is not None
    assert update.log_lines == ("rank0: halfline \ufffd",)


def test_markers_of_the_profiler_are_no_log_lines(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", SMALL)
    log = directory.log(1)
    log.parent.mkdir(exist_ok=True)
    log.write_text("USDT:2026-11-29 17:29:15 8074:8074 Handler.cpp:52] profiler_start\nloading\n")
    update = RunFollower(directory).poll()
    assert update is not None
    assert update.log_lines == ("rank1: loading",)


def test_large_logs_are_read_from_near_their_end(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", SMALL)
    log = directory.log(0)
    log.parent.mkdir()
    log.write_text("x" * 99 + "\n" + "y" * 99 + "\n" * 1 + ("z" * 99 + "\n") * 20_000)
    follower = RunFollower(directory)
    update = follower.poll()
    assert update is not None
    assert sum(map(len, update.log_lines)) <= FIRST_LOG_BYTES + 8 * len(update.log_lines)
    with log.open("a") as stream:
        stream.write(("w" * 99 + "\n") * 20_000)
    update = follower.poll()
    assert update is not None
    assert sum(map(len, update.log_lines)) <= MAX_LOG_BYTES + 8 * len(update.log_lines)
    log.write_text("fresh\n")
    update = follower.poll()
    assert update is not None
    assert update.log_lines[-1] == "rank0: fresh"


def test_events_that_cannot_be_read_are_no_exception(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", SMALL)
    (directory.root / "events.jsonl").mkdir()
    update = RunFollower(directory).poll()
    assert update is not None
    assert update.record is not None
    assert update.events == ()


def test_nothing_new_is_no_update(tmp_path: Path) -> None:
    assert Update() == Update(events=(), record=None, log_lines=(), problem=None)
