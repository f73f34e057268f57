"""What the JSON files of a run directory hold, as immutable records that are checked when they are read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

BASELINE = "baseline"
"""Name of the arm that the others are compared with."""


MAX_BLOCKS = 10_000


FolderName = Annotated[str, msgspec.Meta(pattern=r"^(?!\.+$)[A-Za-z0-9._+-]{1,200}$")]
"""A name that is one folder below the run, whatever wrote it."""


MAX_RANKS = 65_536


Ranks = Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]


MAX_COUNT = 1_000_000


Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]


Nanoseconds = Annotated[int, msgspec.Meta(ge=1, le=2**62)]


Status = Literal["running", "complete", "interrupted", "failed"]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what is stored: immutable, unknown fields of newer versions are ignored."""


class ArmRecord(Record, frozen=True, kw_only=True):
    """One setting of all switches within a case."""

    name: FolderName
    enabled: list[str]
    repeats: str | None = None
    """The arm that this one repeats for the A/A noise floor; None: an arm of its own."""


class CaseRecord(Record, frozen=True, kw_only=True):
    """Model × TP × concurrency × draft length × dtype: what arms are compared within."""

    id: FolderName
    model: dict[str, Any]
    """`ModelSpec` as plain values."""
    tp: Ranks
    concurrency: Count
    draft_tokens: Count
    dtype: str
    prompt_len: Count
    arms: Annotated[list[ArmRecord], msgspec.Meta(min_length=1)]
    switched: list[str] = []
    """Optimizations that the engine sets, on or off; what is neither here nor refused keeps the engine's own default."""
    not_applicable: dict[str, str]
    """Optimizations that this case cannot use, each with the reason."""
    order: list[list[str]]
    """Arm names in the order visited, one list a round."""

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names) or BASELINE not in names:
            raise ValueError(f"case {self.id}: arms have names of their own, and one is {BASELINE!r}")
        if strangers := {name for visits in self.order for name in visits} - set(names):
            raise ValueError(f"case {self.id}: visits of arms that it does not have: {sorted(strangers)}")
        if strangers := {arm.repeats for arm in self.arms if arm.repeats} - set(names):
            raise ValueError(f"case {self.id}: repeats of arms that it does not have: {sorted(strangers)}")
        if self.draft_tokens > MAX_BLOCKS or len(str(self.model.get("blocks", ""))) > MAX_BLOCKS:
            raise ValueError(f"case {self.id}: more blocks or draft tokens than {MAX_BLOCKS}")


class RunRecord(Record, frozen=True, kw_only=True):
    """What was asked for, and how it stands."""

    schema_version: int
    id: str
    name: str
    mtpprof_version: str
    created_utc: str
    argv: list[str]
    status: Status
    engine: str
    engine_reason: str
    device: str
    transport: str
    seed: int
    steps: Count
    warmup: Count
    rounds: Count
    profile_steps: Count
    timeout_s: float
    acceptance_length: float | None
    machine: dict[str, Any]
    versions: dict[str, str]
    cases: Annotated[list[CaseRecord], msgspec.Meta(min_length=1)]
    engine_arguments: list[str] = []
    """`KEY=VALUE` as passed through to the engine."""
    deviations: list[str] = []
    """In what the engine runs something else than was asked for, one sentence each."""
    unavailable: dict[str, str] = {}
    """Optimizations that fall back on this machine although they are switched, each with the reason found before the run."""
    capture: list[str] = msgspec.field(default_factory=lambda: ["torch"])
    """What records the profiled windows: `torch`, `nvtx`, `nsys`."""
    capture_note: str | None = None
    """Why NVTX is not among it although nothing else was asked for; None: it is, or was not wanted."""
    error: str | None = None
    """Why a run is `failed` or `interrupted`."""


class EngineMetrics(Record, frozen=True, kw_only=True):
    """What the engine's own counters say of a window; None: it has no such counter, or observed nothing."""

    steps: int
    """Steps that the counters cover: the window's, and what closes it."""
    generation_tokens: int | None = None
    drafts: int | None = None
    """Times that a sequence was drafted for."""
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    inter_token_ns: float | None = None
    """Mean time between two outputs of a sequence; with speculation an output is all tokens of a step."""


class RoundTiming(Record, frozen=True, kw_only=True):
    """One timed window of an arm, without profiler."""

    round: Count
    position: Count
    """Place of this visit in the order of all visits of its case."""
    step_ns: Annotated[list[list[Nanoseconds]], msgspec.Meta(min_length=1)]
    """Duration of each step, `[rank][step]`."""
    metrics: EngineMetrics | None = None

    def __post_init__(self) -> None:
        _check_rectangular(self.step_ns)


class TimingRecord(Record, frozen=True, kw_only=True):
    """Every timed window of an arm."""

    schema_version: int
    rounds: list[RoundTiming]
    profiled_step_ns: list[list[Nanoseconds]] = []
    """Steps of the profiled window, `[rank][step]`, to show what the profiler costs."""

    def __post_init__(self) -> None:
        _check_rectangular(self.profiled_step_ns)
        if len({entry.round for entry in self.rounds}) < len(self.rounds):
            raise ValueError("a round is there twice")


class RoundOutputs(Record, frozen=True, kw_only=True):
    """What the model produced in one timed window."""

    round: int
    tokens: list[list[int]]
    """Tokens of each sequence, in order."""
    accepted: list[list[int]]
    """Tokens that each step gave each sequence, `[step][sequence]`: accepted drafts + 1."""
    probe: list[list[float]] = []
    """Log-probability of each token of the prompts but the first, `[prompt][position]`, in one pass over whole prompts: the same input
    in every arm, so that outputs can be held against each other as numbers. Empty: not measured."""


class OutputsRecord(Record, frozen=True, kw_only=True):
    """Outputs of every round of an arm."""

    schema_version: int
    rounds: list[RoundOutputs]


def _check_rectangular(step_ns: list[list[int]]) -> None:
    if len({len(steps) for steps in step_ns}) > 1:
        raise ValueError("the ranks have different numbers of steps")
