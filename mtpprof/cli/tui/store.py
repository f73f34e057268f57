"""What the dashboard knows and what is chosen in it: one object, changed on the interface's thread only, read by every screen."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from mtpprof.analyzers.answers.examination import ProblemFound, problem_found
from mtpprof.analyzers.answers.run_report import CaseReport
from mtpprof.analyzers.compare.difference import Difference
from mtpprof.analyzers.compare.effects import Effect
from mtpprof.analyzers.compare.side import Side
from mtpprof.analyzers.live.run_state import LiveState
from mtpprof.cli.tui.sources import Answer, CaseView, Loaded, Traffic
from mtpprof.rundir.directory import RunDirectory
from mtpprof.rundir.records import RunRecord

LOG_LINES = 2_000
QUIET_S = 20.0
"""A run that has written nothing for this long may hang; the dashboard says for how long."""


@dataclass(slots=True)
class Store:
    """Facts and selection."""

    paths: tuple[Path, ...] = ()
    directory: RunDirectory | None = None
    """The run; None: nothing is open, or traces are."""
    record: RunRecord | None = None
    live: LiveState = field(default_factory=LiveState)
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    log_count: int = 0
    """Lines that there have been, so that a pane knows what it has not shown yet."""
    traffic: dict[tuple[str, str], Traffic] = field(default_factory=dict)
    """Calls and bytes by case and arm; empty: not known yet."""
    cases: tuple[CaseView, ...] = ()
    answer: Answer | None = None
    answer_state: str = ""
    """What is being done for the answer, or why there is none."""
    sides: dict[tuple[str, str], Loaded] = field(default_factory=dict)
    side_problems: dict[tuple[str, str], str] = field(default_factory=dict)
    trace_problems: tuple[ProblemFound, ...] = ()
    verdict: str | None = None
    """Why what was asked for cannot be shown; None: it can."""
    case_index: int = 0
    arm_a: int = 0
    arm_b: int = 1
    filter: str = ""
    """Of the collectives."""

    @property
    def case(self) -> CaseView | None:
        """The chosen case."""
        return self.cases[self.case_index % len(self.cases)] if self.cases else None

    @property
    def a(self) -> str | None:
        """Arm on the left, usually the baseline."""
        return self.case.arms[self.arm_a % len(self.case.arms)] if self.case and self.case.arms else None

    @property
    def b(self) -> str | None:
        """Arm on the right; None: there is one arm only."""
        case = self.case
        return case.arms[self.arm_b % len(case.arms)] if case and len(case.arms) > 1 else None

    @property
    def differences(self) -> list[Difference]:
        """What each arm of the case saves."""
        return self.answer.differences.get(self.case.id, []) if self.answer and self.case else []

    @property
    def effects(self) -> list[Effect]:
        """Effects of the case's factorial design."""
        return self.answer.effects.get(self.case.id, []) if self.answer and self.case else []

    @property
    def case_report(self) -> CaseReport | None:
        """The case in the run's report; None: there is none yet, or traces are open."""
        if self.answer is None or self.answer.report is None or self.case is None:
            return None
        return next((case for case in self.answer.report.cases if case.id == self.case.id), None)

    def side(self, arm: str | None) -> Side | None:
        """A side of the chosen case as it was read; None: not read (yet)."""
        if self.case is None or arm is None:
            return None
        loaded = self.sides.get((self.case.id, arm))
        return loaded.side if loaded else None

    def side_problem(self, arm: str | None) -> str | None:
        """Why a side of the chosen case cannot be shown; None: it can, or is being read."""
        if self.case is None or arm is None:
            return None
        side = self.side(arm)
        if side is not None and side.traces is None:
            return side.missing
        return self.side_problems.get((self.case.id, arm))

    @property
    def limits(self) -> list[ProblemFound]:
        """Verdicts that limit what may be said of the chosen sides, the worst first."""
        found = list(self.trace_problems)
        if not found:
            sides = [side for side in (self.side(self.a), self.side(self.b)) if side is not None]
            found = [
                problem_found(problem)
                for side in sides
                if side.traces
                for problem in side.traces.found.problems
            ]
        serious = [problem for problem in found if problem.limits]
        return sorted(dict.fromkeys(serious), key=lambda problem: -problem.level)

    @property
    def missing_sides(self) -> list[str]:
        """Each of the chosen sides that cannot be shown, with the reason."""
        return [
            f"{letter} {arm}: {problem}"
            for letter, arm in (("A", self.a), ("B", self.b))
            if (problem := self.side_problem(arm)) is not None
        ]

    @property
    def banner(self) -> str:
        """What has to be said above everything else; empty: nothing."""
        if self.verdict is not None:
            return self.verdict
        said = [*self.missing_sides, *(limit.sentence for limit in self.limits)]
        first = max(1, len(self.missing_sides))
        more = f" ({len(said) - first} more on Doctor, 7)" if len(said) > first else ""
        return f"! {'; '.join(said[:first])}{more}" if said else ""

    @property
    def running(self) -> bool:
        """Whether the run says that it is in progress."""
        return self.record is not None and self.record.status == "running"

    def choose_arm(self, name: str) -> None:
        """Make an arm side B."""
        if self.case and name in self.case.arms:
            self.arm_b = self.case.arms.index(name)

    def forget(self) -> None:
        """Empty everything, before something else is opened."""
        fresh = Store()
        for name in Store.__slots__:
            setattr(self, name, getattr(fresh, name))
