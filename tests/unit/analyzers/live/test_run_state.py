"""The state of a run out of its events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.analyzers.live.run_state import PROFILE, LiveState, advance, remaining_s, so_far, total_windows
from mtpprof.rundir.directory import RunDirectory
from mtpprof.rundir.follow import EventFollower
from tests.functional.tui import write_events
from tests.runs import Recipe, write_run

S = 10**9


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    recipe = Recipe(
        models=("deepseek-v3.2",), rounds=4, speed=lambda arm: 0.5 if arm == "local-argmax" else 1.0
    )
    found = write_run(tmp_path_factory.mktemp("live") / "run", recipe)
    write_events(found)
    return found


def events_of(directory: RunDirectory) -> list[dict[str, Any]]:
    return EventFollower(directory).new()


def test_all_windows_of_a_finished_run_are_done(directory: RunDirectory) -> None:
    state = advance(LiveState(), events_of(directory))
    run = directory.run()
    assert state.done == total_windows(run) == len(state.cells)
    assert state.cell(run.cases[0].id, "baseline", PROFILE).state == "done"
    assert set(state.ranks) == {0, 1}


@given(st.data())
def test_following_and_attaching_late_end_in_the_same_state(
    directory: RunDirectory, data: st.DataObject
) -> None:
    events = events_of(directory)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=5)))
    state = LiveState()
    for low, high in zip([0, *cuts], [*cuts, len(events)], strict=True):
        state = advance(state, events[low:high])
    assert state == advance(LiveState(), events)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["t_ns", "event", "rank", "case", "arm", "round", "step_ns", "doing", "message"]),
            st.one_of(
                st.none(),
                st.integers(),
                st.text(max_size=5),
                st.lists(st.text(max_size=2), max_size=2),
                st.sampled_from(
                    ["rank", "visit_started", "visit_finished", "profile_finished", "worker_failed"]
                ),
            ),
        ),
        max_size=10,
    )
)
def test_damaged_events_never_break_it(events: list[dict[str, Any]]) -> None:
    state = advance(LiveState(), events)
    assert state.done <= len(events)


def test_first_results_come_with_the_first_rounds(directory: RunDirectory, tmp_path: Path) -> None:
    run = directory.run()
    case = run.cases[0]
    state = advance(LiveState(), events_of(directory))
    figures = so_far(state, case, "local-argmax")
    assert figures.judgement is not None
    assert figures.judgement.claim == "saved"
    assert figures.difference is not None
    assert figures.difference.samples == 4
    assert so_far(state, case, "baseline").judgement is None
    assert so_far(state, case, "baseline-repeat").difference is None
    nothing = so_far(LiveState(), case, "local-argmax")
    assert nothing.mean_ns is None
    assert nothing.step_ns == ()


def test_a_resumed_run_forgets_what_was_only_running() -> None:
    events = [
        {"t_ns": 1 * S, "event": "workers_ready"},
        {"t_ns": 2 * S, "event": "visit_started", "case": "c", "arm": "a", "round": 0},
        {"t_ns": 3 * S, "event": "visit_finished", "case": "c", "arm": "a", "round": 0, "step_ns": [5]},
        {"t_ns": 4 * S, "event": "visit_started", "case": "c", "arm": "b", "round": 0},
        {"t_ns": 5 * S, "event": "worker_failed", "rank": 1, "signal": "SIGKILL", "message": "gone"},
    ]
    state = advance(LiveState(), events)
    assert state.failures == ("rank 1 failed (signal SIGKILL): gone",)
    again = advance(state, [{"t_ns": 60 * S, "event": "workers_ready"}])
    assert again.failures == ()
    assert again.cell("c", "b", 0).state == "waiting"
    assert again.cell("c", "a", 0).step_ns == (5,)
    assert (again.first_ns, again.session_ns, again.session_done) == (1 * S, 60 * S, 0)


def test_time_left_is_this_sessions_pace(directory: RunDirectory) -> None:
    run = directory.run()
    case = run.cases[0].id
    events: list[dict[str, Any]] = [{"t_ns": 100 * S, "event": "workers_ready"}]
    assert remaining_s(advance(LiveState(), events), run, 101 * S) is None
    for number in range(2):
        events.append(
            {
                "t_ns": 0,
                "event": "visit_finished",
                "case": case,
                "arm": "baseline",
                "round": number,
                "step_ns": [1],
            }
        )
        events[-1]["t_ns"] = (102 + number) * S
    left = remaining_s(advance(LiveState(), events), run, 110 * S)
    assert left == pytest.approx(5.0 * (total_windows(run) - 2))


def test_profiled_windows_have_their_times(directory: RunDirectory) -> None:
    events = events_of(directory)
    times = {
        (event["event"], event["arm"]): event["t_ns"]
        for event in events
        if str(event["event"]).startswith("profile")
    }
    found = advance(LiveState(), events).profiled()
    case = directory.run().cases[0]
    assert [arm for _, arm, _, _ in found] == [arm.name for arm in case.arms if arm.repeats is None]
    for _, arm, start_ns, end_ns in found:
        assert (start_ns, end_ns) == (times["profile_started", arm], times["profile_finished", arm])
    running = [event for event in events if event["event"] != "profile_finished"]
    assert advance(LiveState(), running).profiled() == []
