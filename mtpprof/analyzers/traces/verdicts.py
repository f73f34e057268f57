"""The closed list of verdicts on traces, and what each of them forbids.

A verdict is a fact about one input, found by a reader, by discovery or by the doctor. The rule that this module holds: an
answer that a verdict forbids is withheld with the verdict's sentence as the reason, never replaced by a zero. To add a
verdict is to add a member of `Verdict` and its row in `VERDICTS`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Severity(IntEnum):
    """How bad a verdict is; the largest of a file is the file's state."""

    OK = 0
    NOTE = 1
    """Worth knowing; nothing is withheld."""
    WARNING = 2
    """Some answers are withheld or weakened."""
    ERROR = 3
    """The file gives no answer about communication."""


class Answer(StrEnum):
    """A group of answers that a verdict can forbid."""

    COUNTS = "counts"
    """How many collectives there were in the window."""
    BYTES = "bytes"
    TIME = "time"
    """Durations: summed, busy, exposed."""
    CROSS_RANK = "cross-rank"
    """Matching over ranks: transfer, wait, skew."""
    NESTING = "nesting"
    """Which range encloses an event, to less than 1 µs."""


class Verdict(StrEnum):
    """Everything that can be said of a trace."""

    FINE = "fine"
    TRUNCATED = "truncated"
    EMPTY = "empty"
    NO_EVENTS = "no_events"
    METADATA_ONLY = "metadata_only"
    NO_KERNELS = "no_kernels"
    NOT_A_TRACE = "not_a_trace"
    OTHER_FORMAT = "other_format"
    """A format that is known by name and not read."""
    UNREADABLE = "unreadable"
    TOO_LARGE = "too_large"
    INTERLEAVED = "interleaved"
    DAMAGED_TEXT = "damaged_text"
    DAMAGED_EVENTS = "damaged_events"
    UNNAMED_EVENTS = "unnamed_events"
    CORRUPT_DURATIONS = "corrupt_durations"
    OUT_OF_RANGE = "out_of_range"
    IDLE_WINDOW = "idle_window"
    DROPPED_EVENTS = "dropped_events_suspected"
    OPAQUE_GRAPHS = "opaque_graphs"
    OVERLAPPING_LANES = "overlapping_lanes"
    TIME_NOT_EXACT = "time_not_exact"
    CAPTURE_TRACE = "capture_trace"
    FRONT_END_TRACE = "front_end_trace"
    UNKNOWN_RANK = "unknown_rank"
    ASSUMED_RANK = "assumed_rank"
    CONFLICTING_RANK = "conflicting_rank"
    DUPLICATE_RANK = "duplicate_rank"
    COPY = "copy"
    STALE_FILE = "stale_file"
    MISSING_RANKS = "missing_ranks"
    UNKNOWN_WORLD = "unknown_world"
    UNALIGNED_CLOCKS = "unaligned_clocks"
    NOT_CLOSED = "not_closed"
    OPEN_RANGES = "open_ranges"
    LONE_ENDS = "lone_ends"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictInfo:
    """What a verdict means for whoever reads the answer."""

    severity: Severity
    forbids: frozenset[Answer]
    remedy: str
    """What to do about it; empty: nothing need be done."""


_ALL = frozenset(Answer)
_CROSS = frozenset({Answer.CROSS_RANK})
_NONE: frozenset[Answer] = frozenset()


def _info(severity: Severity, forbids: frozenset[Answer], remedy: str = "") -> VerdictInfo:
    return VerdictInfo(severity=severity, forbids=forbids, remedy=remedy)


_CHECK_CAPTURE = (
    "check what wrote the file, and that its profiler was on while requests ran; then capture again"
)

VERDICTS: dict[Verdict, VerdictInfo] = {
    Verdict.FINE: _info(Severity.OK, _NONE),
    Verdict.TRUNCATED: _info(
        Severity.WARNING,
        frozenset({Answer.COUNTS, Answer.CROSS_RANK}),
        "profile a shorter window, or wait until the writer has finished before reading",
    ),
    Verdict.EMPTY: _info(
        Severity.ERROR, _ALL, "capture again; check that the profiler was stopped and the disk not full"
    ),
    Verdict.NO_EVENTS: _info(Severity.ERROR, _ALL, _CHECK_CAPTURE),
    Verdict.METADATA_ONLY: _info(Severity.ERROR, _ALL, _CHECK_CAPTURE),
    Verdict.NO_KERNELS: _info(
        Severity.NOTE,
        _NONE,
        "if this ran on a GPU, capture again with the profiler's CUDA activity switched on",
    ),
    Verdict.NOT_A_TRACE: _info(
        Severity.ERROR, _ALL, "give a trace; docs/analyze.md lists the formats that are read"
    ),
    Verdict.OTHER_FORMAT: _info(
        Severity.ERROR,
        _ALL,
        "docs/analyze.md lists the formats that are read, and what to do about the others",
    ),
    Verdict.UNREADABLE: _info(Severity.ERROR, _ALL, "check the file, and copy or capture it again"),
    Verdict.TOO_LARGE: _info(
        Severity.ERROR,
        _ALL,
        "give a smaller file, or a part of it; a file that you trust is read whole by analyze and doctor with --max-gb",
    ),
    Verdict.INTERLEAVED: _info(Severity.ERROR, _ALL, "capture again with a path of its own for every rank"),
    Verdict.DAMAGED_TEXT: _info(Severity.NOTE, _NONE),
    Verdict.DAMAGED_EVENTS: _info(
        Severity.WARNING, frozenset({Answer.COUNTS}), "capture again if exact counts matter"
    ),
    Verdict.UNNAMED_EVENTS: _info(
        Severity.WARNING, frozenset({Answer.COUNTS}), "export the trace again, with its names"
    ),
    Verdict.CORRUPT_DURATIONS: _info(Severity.WARNING, _NONE, "the events concerned count with zero length"),
    Verdict.OUT_OF_RANGE: _info(
        Severity.ERROR, _ALL, "capture again; the profiler's clock and its events disagree"
    ),
    Verdict.IDLE_WINDOW: _info(Severity.WARNING, _NONE, "drive load while the profiler is on"),
    Verdict.DROPPED_EVENTS: _info(
        Severity.WARNING,
        frozenset({Answer.COUNTS, Answer.CROSS_RANK}),
        "profile a shorter window and drop its first step",
    ),
    Verdict.OPAQUE_GRAPHS: _info(
        Severity.WARNING,
        frozenset({Answer.COUNTS, Answer.BYTES, Answer.TIME, Answer.CROSS_RANK}),
        "capture again with nsys profile --cuda-graph-trace=node",
    ),
    Verdict.OVERLAPPING_LANES: _info(Severity.NOTE, _NONE),
    Verdict.TIME_NOT_EXACT: _info(Severity.NOTE, frozenset({Answer.NESTING})),
    Verdict.CAPTURE_TRACE: _info(Severity.NOTE, _NONE, "it shows graph capture, not serving; it is left out"),
    Verdict.FRONT_END_TRACE: _info(
        Severity.NOTE, _NONE, "it shows the API process, which is no rank; it is left out"
    ),
    Verdict.UNKNOWN_RANK: _info(Severity.WARNING, _CROSS, "say which rank it is with --rank-map FILE=RANK"),
    Verdict.ASSUMED_RANK: _info(Severity.NOTE, _NONE, "say otherwise with --rank-map FILE=RANK"),
    Verdict.CONFLICTING_RANK: _info(Severity.NOTE, _NONE, "say otherwise with --rank-map FILE=RANK"),
    Verdict.DUPLICATE_RANK: _info(
        Severity.WARNING, _CROSS, "name the one file of each rank, or use --rank-map FILE=RANK"
    ),
    Verdict.COPY: _info(Severity.NOTE, _NONE),
    Verdict.STALE_FILE: _info(
        Severity.NOTE, _NONE, "it is left out; give a directory of its own to every run"
    ),
    Verdict.MISSING_RANKS: _info(Severity.WARNING, _CROSS, "add the traces of the ranks named"),
    Verdict.UNKNOWN_WORLD: _info(Severity.NOTE, _NONE),
    Verdict.UNALIGNED_CLOCKS: _info(
        Severity.WARNING, _NONE, "times are compared after alignment on collective ends only"
    ),
    Verdict.NOT_CLOSED: _info(Severity.NOTE, _NONE),
    Verdict.OPEN_RANGES: _info(Severity.NOTE, _NONE),
    Verdict.LONE_ENDS: _info(Severity.NOTE, _NONE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One verdict on one input: machine-readable code and the sentence for people."""

    verdict: Verdict
    sentence: str
    """Names the file or rank, and the reason."""
    path: str = ""
    rank: int | None = None
    count: int | None = None
    """How many events, bytes or ranks it concerns, where that is a number."""
    left_out: bool = False
    """The file gave no table: answers about the others stand, those across ranks do not."""
    apart: bool = False
    """The file is of another run than the one that it is named with: all answers about that one stand."""
    advice: str = ""
    """What to do, where the verdict's own remedy does not say it."""

    @property
    def severity(self) -> Severity:
        """Severity of the verdict."""
        return VERDICTS[self.verdict].severity

    @property
    def forbids(self) -> frozenset[Answer]:
        """Answers that must be withheld because of it."""
        if self.apart:
            return _NONE
        forbids = VERDICTS[self.verdict].forbids
        return forbids & _CROSS if self.left_out else forbids

    @property
    def remedy(self) -> str:
        """What the user can do."""
        return self.advice or VERDICTS[self.verdict].remedy


def worst(problems: Iterable[Problem]) -> Severity:
    """The largest severity among `problems`; OK where there are none."""
    return max((problem.severity for problem in problems), default=Severity.OK)


def withheld(problems: Iterable[Problem], answer: Answer) -> tuple[Problem, ...]:
    """The problems because of which `answer` must be withheld; empty: it may be given."""
    return tuple(problem for problem in problems if answer in problem.forbids)
