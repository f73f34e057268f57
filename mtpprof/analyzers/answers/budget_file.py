"""Budget files: what a step may cost, as TOML that people edit; written from a run that is good."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Annotated

import msgspec

from mtpprof.analyzers.compare.difference import engagement_of_side
from mtpprof.analyzers.compare.engagement import Engaged
from mtpprof.analyzers.compare.side import Side
from mtpprof.analyzers.compare.step_time import noise_of
from mtpprof.analyzers.measures.batches import Stratum, by_phase_and_kind, rate_of
from mtpprof.analyzers.numeric.stats import CONFIDENCE
from mtpprof.errors import InputError
from mtpprof.files import no_regular_file
from mtpprof.rundir.records import Record

BUDGET_SCHEMA_VERSION = 1
TOLERANCE = 0.05
"""Part of a step that two runs on one machine may differ by without any cause in the code."""


Confidence = Annotated[float, msgspec.Meta(gt=0, le=0.999999)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
Duration = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Step = Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]
# TOML has nan and inf, which pass for anything in a comparison; of bounds on both sides neither holds.


class Limit(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most that the collectives of one kind, phase and batch may be, per step and rank."""

    calls: Amount
    batch: str = ""
    phase: str = ""
    """Empty: the trace does not tell."""
    kind: str = ""
    payload_bytes: Amount | None = None
    wire_bytes: Amount | None = None


class ArmBudget(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Budget of one arm, or of a capture (`case` and `arm` empty)."""

    case: str = ""
    arm: str = ""
    engaged: tuple[str, ...] = ()
    """Optimizations that must show in the trace."""
    step_ns: Step | None = None
    step_noise_ns: Duration | None = None
    """A/A floor of the run that wrote the budget."""
    machine: str = ""
    device: str = ""
    limit: tuple[Limit, ...] = ()


class Budget(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A budget file."""

    schema_version: int
    confidence: Confidence = CONFIDENCE
    tolerance: Amount = TOLERANCE
    """Of step times: part of the budget that may be exceeded."""
    arm: list[ArmBudget]


def load_budget(path: Path) -> Budget:
    """Read a budget file.

    Raises:
        InputError: not readable, not TOML, of a newer format, or of another shape; names the file and the place.
    """
    if kind := no_regular_file(path):
        raise InputError(f"{path}: is not a regular file but {kind}; give a budget file.")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: the budget cannot be read ({error.strerror}); check the path.") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            f"{path}: not a TOML file ({error}); write one with mtpprof check RUN --write-budget FILE."
        ) from error
    version = content.get("schema_version")
    if isinstance(version, int) and version > BUDGET_SCHEMA_VERSION:
        raise InputError(f"{path}: written in format {version} by a newer mtpprof; update mtpprof.")
    try:
        budget = msgspec.convert(content, Budget, strict=True)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: not a budget ({error}); correct it, or write a new one.") from error
    if not budget.arm:
        raise InputError(f"{path}: holds no [[arm]], so nothing would be checked; write a new one.")
    return budget


def make_budget(sides: Iterable[Side], *, time: bool, confidence: float = CONFIDENCE) -> Budget:
    """The budget that these sides just meet.

    Args:
        sides: Arms of a run, or a capture.
        time: Whether to write step times into it.
        confidence: With which step times are held against it.

    Raises:
        InputError: no side has anything to write a budget from.
    """
    arms = [_arm_budget(side, time, confidence) for side in sides]
    arms = [arm for arm in arms if arm.limit or arm.step_ns is not None]
    if not arms:
        raise InputError(
            "nothing of it has collectives in steps, or step times that were asked for (--time): there is nothing to write a "
            "budget from."
        )
    return Budget(schema_version=BUDGET_SCHEMA_VERSION, confidence=confidence, arm=arms)


def _arm_budget(side: Side, time: bool, confidence: float) -> ArmBudget:
    time = time and bool(side.windows)
    noise = noise_of(side, confidence) if time else None
    engaged = engagement_of_side(side)
    return ArmBudget(
        case=side.case,
        arm=side.label if side.case else "",
        engaged=tuple(
            name
            for name, found in engaged.items()
            if found.verdict == Engaged.ENGAGED and found.requested is not False
        ),
        step_ns=round(fmean(side.medians.values())) if time else None,
        step_noise_ns=round(noise.floor) if noise else None,
        machine=side.setting.get("machine", "") if time else "",
        device=side.device if time else "",
        limit=tuple(
            limit for stratum in (side.traces.strata if side.traces else ()) for limit in _limits(stratum)
        ),
    )


def _limits(stratum: Stratum) -> Iterator[Limit]:
    for (phase, kind), total in by_phase_and_kind(stratum).items():
        yield Limit(
            batch=stratum.batch.text,
            phase=phase,
            kind=kind,
            calls=total.calls / stratum.pairs,
            payload_bytes=rate_of(total.payload_bytes, stratum),
            wire_bytes=rate_of(total.wire_bytes, stratum),
        )


def budget_toml(budget: Budget, source: str) -> str:
    """A budget as the text of a TOML file that `load_budget` reads."""
    lines = [
        f"# What a step may cost, per rank: written from {' '.join(source.split())}.",
        "# Calls and bytes exceed by one; step_ns only beyond noise and tolerance, with this confidence, on one machine.",
        f"schema_version = {budget.schema_version}",
        f"confidence = {budget.confidence}",
        f"tolerance = {budget.tolerance}",
    ]
    for arm in budget.arm:
        lines += ["", "[[arm]]", *_toml_lines(arm)]
        for limit in arm.limit:
            lines += ["", "[[arm.limit]]", *_toml_lines(limit)]
    return "\n".join(lines) + "\n"


def _toml_lines(record: Record) -> Iterator[str]:
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name == "limit" or value is None or value in ("", ()):
            continue
        yield f"{name} = {_toml_value(value)}"


def _toml_value(value: object) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    # JSON's strings, integers and lists of strings are TOML's, but for DEL, which TOML wants escaped.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
