"""Options of `run` from a TOML file: the same names as on the command line, which goes first.

model = ["deepseek-v3.2"]
tp = 4
concurrency = [1, 16]
opt = ["local-argmax=both"]

Options of every command that reads traces, declared once: which part of them is asked for, and how they are read.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import UNSET, UnsetType

from mtpprof.errors import InputError, UsageError
from mtpprof.files import no_regular_file


class PlanFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a plan file may say; a test holds it against the options of `run`."""

    model: list[str] | UnsetType = UNSET
    tp: int | UnsetType = UNSET
    opt: list[str] | UnsetType = UNSET
    arms: str | UnsetType = UNSET
    concurrency: list[int] | UnsetType = UNSET
    draft_tokens: int | UnsetType = UNSET
    acceptance_length: float | UnsetType = UNSET
    prompt_len: int | UnsetType = UNSET
    scale: str | UnsetType = UNSET
    layers: int | UnsetType = UNSET
    vocab: int | UnsetType = UNSET
    dtype: str | UnsetType = UNSET
    steps: int | UnsetType = UNSET
    warmup: int | UnsetType = UNSET
    rounds: int | UnsetType = UNSET
    profile_steps: int | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    engine: str | UnsetType = UNSET
    vllm_arg: list[str] | UnsetType = UNSET
    device: str | UnsetType = UNSET
    transport: str | UnsetType = UNSET
    capture: str | UnsetType = UNSET
    timeout: float | UnsetType = UNSET
    name: str | UnsetType = UNSET


def merge_plan_file(context: typer.Context, path: Path | None) -> dict[str, Any]:
    """The command's parameters by name; where the command line is silent, those of the file.

    Raises:
        InputError: the file cannot be read, or has a key or value that `run` does not take.
    """
    values = dict(context.params)
    if path is None:
        return values
    for name, value in msgspec.structs.asdict(read_plan_file(path)).items():
        source = context.get_parameter_source(name)
        if value is not UNSET and (source is None or source.name == "DEFAULT"):
            values[name] = value
    return values


def read_plan_file(path: Path) -> PlanFile:
    """Read and check a plan file.

    Raises:
        InputError: it cannot be read, or has a key or value that `run` does not take.
    """
    if kind := no_regular_file(path):
        raise InputError(
            f"{path}: is not a regular file but {kind}; give a TOML file with options of `mtpprof run`."
        )
    try:
        with path.open("rb") as stream:
            entries = tomllib.load(stream)
        return msgspec.convert({key.replace("-", "_"): value for key, value in entries.items()}, PlanFile)
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}; give a TOML file with options of `mtpprof run`."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not TOML ({error}); write lines such as tp = 4.") from error
    except msgspec.ValidationError as error:
        known = ", ".join(PlanFile.__struct_fields__)
        raise InputError(f"{path}: {error}; options that a file may give: {known}.") from error


if TYPE_CHECKING:
    from mtpprof.analyzers.calls.attribution import ReadOptions, Window

SELECTION = "What of the traces"
READING = "How they are read"
NS_PER_UNIT = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}

Ranks = Annotated[
    str | None,
    typer.Option("--ranks", metavar="LIST", help="Only these ranks, e.g. 0,2-3.", rich_help_panel=SELECTION),
]
WindowOfTime = Annotated[
    str | None,
    typer.Option(
        "--window",
        metavar="FROM:TO",
        help="Only what starts in this time, from the first event, e.g. 10ms:1.5s.",
        rich_help_panel=SELECTION,
    ),
]
Steps = Annotated[
    str | None,
    typer.Option(
        "--steps", metavar="FIRST:LAST", help="Only these steps, e.g. 3:8.", rich_help_panel=SELECTION
    ),
]
Rules = Annotated[
    Path | None,
    typer.Option(
        "--rules", metavar="FILE", help="Rules of your own for names (TOML).", rich_help_panel=READING
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Preset or config.json of traces without a run record: derives the bytes of calls that carry none; "
        "compare and check find redundant collectives by its ledger.",
        rich_help_panel=READING,
    ),
]
RankMap = Annotated[
    list[str] | None,
    typer.Option(
        "--rank-map",
        metavar="FILE=RANK",
        help="Which file is which rank, where files do not say; repeatable.",
        rich_help_panel=READING,
    ),
]
MaxGb = Annotated[
    float | None,
    typer.Option(
        "--max-gb",
        metavar="GB",
        help="Largest text of one file, decompressed, however well it is compressed; "
        "without it 64 GiB, and no more than 200 times the file.",
        rich_help_panel=READING,
    ),
]


def reading(
    *,
    rules: Path | None = None,
    model: str | None = None,
    ranks: str | None = None,
    window: str | None = None,
    steps: str | None = None,
    rank_map: list[str] | None = None,
    max_gb: float | None = None,
) -> ReadOptions:
    """What the options of a command line say of how traces are read.

    Raises:
        UsageError: one of them is not of its form.
        InputError: the file of rules or of the model cannot be read.
    """
    from mtpprof.analyzers.calls.attribution import ReadOptions
    from mtpprof.analyzers.calls.rules import load_rules
    from mtpprof.analyzers.traces.discover import parse_rank_map
    from mtpprof.analyzers.traces.load import LoadOptions
    from mtpprof.analyzers.traces.readers.base import Limits
    from mtpprof.models.hf import resolve_model
    from mtpprof.models.spec import Scale

    if max_gb is not None and not 0 < max_gb < 1e6:
        raise UsageError(f"--max-gb {max_gb:g}: give a number of gigabytes above 0.")
    limits = Limits() if max_gb is None else Limits.of_trusted(round(max_gb * 1e9))
    return ReadOptions(
        rules=load_rules(rules) if rules else (),
        ranks=frozenset(parse_ranks(ranks)) if ranks is not None else None,
        window=_window(window, steps),
        model=resolve_model(model, scale=Scale.FULL) if model else None,
        rank_map=parse_rank_map(rank_map or ()),
        load=LoadOptions(limits=limits),
    )


def parse_ranks(text: str) -> set[int]:
    """`0,2-3` as numbers.

    Raises:
        UsageError: not of that form.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(first) > 6 or len(last) > 6:
            raise UsageError(f"--ranks {text}: give numbers and ranges, e.g. 0,2-3.")
        if dash and int(last) < int(first):
            raise UsageError(
                f"--ranks {text}: the range {first}-{last} is empty; give the smaller one first."
            )
        found.update(range(int(first), int(last or first) + 1))
    return found


def _window(window: str | None, steps: str | None) -> Window:
    from mtpprof.analyzers.calls.attribution import Window

    start, end = _bounds(window, "--window", parse_time, "times such as 10ms:1.5s")
    first, last = _bounds(steps, "--steps", _whole, "whole numbers such as 3:8")
    return Window(start_ns=start, end_ns=end, first_step=first, last_step=last)


def _bounds(
    text: str | None, option: str, parse: Callable[[str], int], form: str
) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    first, colon, last = text.partition(":")
    try:
        bounds = (parse(first) if first else None), (parse(last) if last else None)
    except ValueError:
        bounds = None, None
    if not colon or bounds == (None, None):
        raise UsageError(f"{option} {text}: give {form}; either side may be left out.")
    start, end = bounds
    if start is not None and end is not None and end < start:
        raise UsageError(f"{option} {text}: ends before it begins; give the earlier bound first.")
    return bounds


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def parse_time(text: str) -> int:
    """`10ms`, `1.5s`, `200` (µs as in traces) in nanoseconds.

    Raises:
        ValueError: not a time.
    """
    number = text.rstrip("nµumsNMS")
    unit = text[len(number) :] or "us"
    if unit not in NS_PER_UNIT:
        raise ValueError(text)
    value = float(number) * NS_PER_UNIT[unit]
    if not abs(value) < 2**62:
        raise ValueError(text)
    return round(value)
