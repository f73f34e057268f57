"""The experiment, as every engine carries it out: cases, then rounds of arms, then one profiled window an arm.

Runs on every rank alike. What is already in the run directory is not done again, so that the same code serves a first run and
`--resume`. Step times come from windows without a profiler; attribution comes from the profiled ones.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

from mtpprof.profilers.process import Host, Session, TimedWindow
from mtpprof.rundir.directory import (
    OUTPUTS_FILE,
    SCHEMA_VERSION,
    TIMING_FILE,
    RecordError,
    RecordT,
    RunDirectory,
)
from mtpprof.rundir.records import (
    ArmRecord,
    CaseRecord,
    OutputsRecord,
    RoundOutputs,
    RoundTiming,
    RunRecord,
    TimingRecord,
)


@dataclass(frozen=True, slots=True)
class Remaining:
    """What a case still lacks."""

    visits: list[tuple[int, int, str]]
    """`(round, position, arm)` in the order to visit."""
    profiles: list[str]

    @property
    def count(self) -> int:
        """Number of windows left."""
        return len(self.visits) + len(self.profiles)


def remaining(case: CaseRecord, directory: RunDirectory) -> Remaining:
    """What of a case is not in the run directory yet."""
    done = {}
    for arm in case.arms:
        timing = _stored(directory.timing, case.id, arm.name)
        outputs = _stored(directory.outputs, case.id, arm.name)
        timed = {entry.round for entry in timing.rounds} if timing else set()
        done[arm.name] = timed & ({entry.round for entry in outputs.rounds} if outputs else set())
    visits = []
    position = 0
    for round_index, names in enumerate(case.order):
        for name in names:
            if round_index not in done[name]:
                visits.append((round_index, position, name))
            position += 1
    profiles = [
        arm.name
        for arm in case.arms
        if arm.repeats is None and not directory.has_traces(case.id, arm.name, case.tp)
    ]
    return Remaining(visits=visits, profiles=profiles)


def _stored(read: Callable[[str, str], RecordT | None], case: str, arm: str) -> RecordT | None:
    """A record of an arm; None: there is none, or it is damaged, and what it held is measured again."""
    try:
        return read(case, arm)
    except RecordError:
        return None


def run_cases(run: RunRecord, directory: RunDirectory, host: Host) -> None:
    """Carry out all that is left of a run, writing results and progress as they come."""
    for case in run.cases:
        left: Remaining = host.agree(remaining(case, directory) if host.is_writer else None)
        if not left.count:
            continue
        _event(directory, host, "case_started", case=case.id, windows=left.count)
        host.alive(f"{case.id}: loading")
        session = host.open(run, case)
        try:
            _run_case(run, case, left, directory, host, session)
        finally:
            session.close()
        _event(directory, host, "case_finished", case=case.id)


def _run_case(
    run: RunRecord, case: CaseRecord, left: Remaining, directory: RunDirectory, host: Host, session: Session
) -> None:
    arms = {arm.name: arm for arm in case.arms}
    # A collection in the middle of a step would be charged to the arm that happens to be running.
    gc.collect()
    gc.freeze()  # what is loaded by now stays; collections between windows need not look at it again
    gc.disable()
    try:
        for round_index, position, name in left.visits:
            fields = {"case": case.id, "arm": name, "round": round_index}
            _event(directory, host, "visit_started", **fields)
            host.alive(f"{case.id}/{name}: round {round_index}")
            window = session.time_window(frozenset(arms[name].enabled), warmup=run.warmup, steps=run.steps)
            if host.is_writer:
                _store_window(directory, case, arms[name], round_index, position, window)
            _event(directory, host, "visit_finished", step_ns=_slowest_rank(window.step_ns), **fields)
            gc.collect()
        for name in left.profiles:
            fields = {"case": case.id, "arm": name}
            _event(directory, host, "profile_started", **fields)
            host.alive(f"{case.id}/{name}: profiling")
            step_ns = session.profile_window(
                frozenset(arms[name].enabled),
                warmup=run.warmup,
                steps=run.profile_steps,
                folder=directory.arm(case.id, name),
            )
            if host.is_writer:
                _store_profile(directory, case, name, step_ns)
            _event(directory, host, "profile_finished", **fields)
            gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()


def _slowest_rank(step_ns: list[list[int]]) -> list[int]:
    """Per step, the time of the rank that took longest: what a user of the model would wait."""
    return [max(ranks) for ranks in zip(*step_ns, strict=True)]


def _store_window(
    directory: RunDirectory,
    case: CaseRecord,
    arm: ArmRecord,
    round_index: int,
    position: int,
    window: TimedWindow,
) -> None:
    timing = _stored(directory.timing, case.id, arm.name)
    outputs = _stored(directory.outputs, case.id, arm.name)
    folder = directory.arm(case.id, arm.name)
    directory.write(
        folder / OUTPUTS_FILE,
        OutputsRecord(
            schema_version=SCHEMA_VERSION,
            rounds=[
                *(entry for entry in (outputs.rounds if outputs else []) if entry.round != round_index),
                RoundOutputs(
                    round=round_index, tokens=window.tokens, accepted=window.accepted, probe=window.probe
                ),
            ],
        ),
    )
    directory.write(
        folder / TIMING_FILE,
        TimingRecord(
            schema_version=SCHEMA_VERSION,
            rounds=[
                *(entry for entry in (timing.rounds if timing else []) if entry.round != round_index),
                RoundTiming(
                    round=round_index, position=position, step_ns=window.step_ns, metrics=window.metrics
                ),
            ],
            profiled_step_ns=timing.profiled_step_ns if timing else [],
        ),
    )


def _store_profile(directory: RunDirectory, case: CaseRecord, arm: str, step_ns: list[list[int]]) -> None:
    timing = _stored(directory.timing, case.id, arm)
    directory.write(
        directory.arm(case.id, arm) / TIMING_FILE,
        TimingRecord(
            schema_version=SCHEMA_VERSION, rounds=timing.rounds if timing else [], profiled_step_ns=step_ns
        ),
    )


def _event(directory: RunDirectory, host: Host, event: str, **fields: object) -> None:
    if host.is_writer:
        directory.append_event(event, **fields)
