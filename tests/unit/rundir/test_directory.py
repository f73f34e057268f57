"""The run directory's files survive what happens to files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof import ranges
from mtpprof.errors import InputError, UsageError
from mtpprof.ranges import CollectiveRange
from mtpprof.rundir.directory import SCHEMA_VERSION, RunDirectory
from mtpprof.rundir.follow import EventFollower
from mtpprof.rundir.records import ArmRecord, CaseRecord, RoundTiming, TimingRecord


def timing(step_ns: list[list[int]]) -> TimingRecord:
    return TimingRecord(
        schema_version=SCHEMA_VERSION, rounds=[RoundTiming(round=0, position=0, step_ns=step_ns)]
    )


def test_records_come_back_as_written(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    record = timing([[1, 2], [3, 4]])
    directory.write(directory.arm("case", "arm") / "timing.json", record)
    assert directory.timing("case", "arm") == record
    assert [path.name for path in directory.arm("case", "arm").iterdir()] == ["timing.json"]


def test_an_arm_without_files_has_no_timing(tmp_path: Path) -> None:
    assert RunDirectory(tmp_path).timing("case", "arm") is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema_version": 1}', '{"schema_version": "x"}', "\x00\xff"]
)
def test_damaged_files_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"run\.json"):
        RunDirectory(tmp_path).run()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION + 1}))
    with pytest.raises(InputError, match="newer mtpprof"):
        RunDirectory(tmp_path).run()


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mtpprof run"):
        RunDirectory(tmp_path / "nothing").run()


def test_events_are_followed_line_by_line(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    follower = EventFollower(directory)
    assert follower.new() == []
    directory.append_event("a", x=1)
    directory.append_event("b", text="[red]\n\x01")
    assert [event["event"] for event in follower.new()] == ["a", "b"]
    with (tmp_path / "events.jsonl").open("ab") as stream:
        stream.write(b'{"event": "half')
    assert follower.new() == []
    with (tmp_path / "events.jsonl").open("ab") as stream:
        stream.write(b'"}\nnot json\n{"event": "c"}\n')
    assert [event["event"] for event in follower.new()] == ["half", "c"]
    assert EventFollower(directory, from_end=True).new() == []


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        ([{"round": 0, "position": 0, "step_ns": [[1, 2], [3]]}], "different numbers of steps"),
        ([{"round": 0, "position": 0, "step_ns": [[0]]}], ">= 1"),
        ([{"round": 0, "position": 0, "step_ns": [[-5]]}], ">= 1"),
        ([{"round": 0, "position": 0, "step_ns": [[10**30]]}], "<= 4611686018427387904"),
        ([{"round": 0, "position": 0, "step_ns": []}], "length >= 1"),
        ([{"round": 0, "position": i, "step_ns": [[5]]} for i in range(2)], "twice"),
    ],
)
def test_times_that_cannot_be_are_damage(tmp_path: Path, rounds: object, said: str) -> None:
    path = RunDirectory(tmp_path).arm("case", "arm") / "timing.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"schema_version": 1, "rounds": rounds}))
    with pytest.raises(InputError, match=said):
        RunDirectory(tmp_path).timing("case", "arm")


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(InputError, match="not a regular file"):
        RunDirectory(tmp_path).run()


def test_one_process_at_a_time_and_the_lock_is_seen(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    assert not directory.is_locked()
    with directory.locked():
        assert directory.is_locked()
        with pytest.raises(UsageError, match="another mtpprof"), RunDirectory(tmp_path / "run").locked():
            pass
    assert not directory.is_locked()


def arm_record(name: str, repeats: str | None = None) -> ArmRecord:
    return ArmRecord(name=name, enabled=[], repeats=repeats)


@pytest.mark.parametrize(
    ("arms", "order"),
    [
        (["a"], []),
        (["baseline", "baseline"], []),
        (["baseline"], [["other"]]),
    ],
)
def test_cases_that_contradict_themselves_are_refused(arms: list[str], order: list[list[str]]) -> None:
    with pytest.raises(ValueError, match="case x"):
        CaseRecord(
            id="x",
            model={},
            tp=1,
            concurrency=1,
            draft_tokens=0,
            dtype="bf16",
            prompt_len=1,
            arms=[arm_record(name) for name in arms],
            not_applicable={},
            order=order,
        )


WORDS = st.text(st.characters(exclude_characters=' ="', min_codepoint=33, max_codepoint=0x2FF), min_size=1)


@given(
    site=WORDS,
    phase=st.sampled_from(["target", "draft[0]", "draft[12]", "prefill"]),
    shape=st.lists(st.integers(0, 2**40), max_size=4),
    fused=st.sampled_from(["", "residual_rmsnorm"]),
    size=st.integers(0, 2**60),
)
def test_range_names_are_read_back(site: str, phase: str, shape: list[int], fused: str, size: int) -> None:
    written = CollectiveRange(
        kind="all_reduce",
        site=site,
        phase=phase,
        shape=tuple(shape),
        dtype="bf16",
        payload_bytes=size,
        group="tp",
        group_size=4,
        implementation="shm_oneshot",
        sequence=7,
        fused=fused,
    )
    assert '"' not in written.name()
    assert ranges.parse_collective(written.name()) == written


@pytest.mark.parametrize(
    "name",
    [
        "",
        "ncclKernel",
        "mtpprof::",
        "mtpprof::step index=3",
        "mtpprof::phase name=target",
        "mtpprof::all_reduce site=x",
    ],
)
def test_other_names_are_no_collectives(name: str) -> None:
    assert ranges.parse_collective(name) is None


def test_split_reads_our_words_only() -> None:
    assert ranges.split(ranges.step_name(3)) == ("step", {"index": "3"})
    assert ranges.split(ranges.phase_name("draft[1]")) == ("phase", {"name": "draft[1]"})
    other: Any = ranges.split("execute_context_0(0)")
    assert other is None


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is locked there")
def test_the_lock_says_which_process_holds_it(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert directory.holder() is None
    with directory.locked():
        found = directory.holder()
        assert found is not None
        assert found.pid == os.getpid()
        (tmp_path / ".lock").write_text("{")
        assert directory.holder() is None
    assert directory.holder() is None
