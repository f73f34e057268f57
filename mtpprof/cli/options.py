"""Options of `run` from a TOML file: the same names as on the command line, which goes first.

model = ["deepseek-v3.2"]
tp = 4
concurrency = [1, 16]
opt = ["local-argmax=both"]

`--max-gb`: how much of a file is read before it is refused.
"""

from __future__ import annotations

import tomllib
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
            f"{path}: is no regular file but {kind}; give a TOML file with options of `mtpprof run`."
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
    from mtpprof.analyzers.traces.load import LoadOptions

MaxGb = Annotated[
    float | None,
    typer.Option(
        metavar="GB",
        help="Largest text of one file, decompressed, however well it is compressed; "
        "without it 64 GiB, and no more than 200 times the file.",
    ),
]


def load_options(max_gb: float | None) -> LoadOptions:
    """How files are read.

    Raises:
        UsageError: not a size.
    """
    from mtpprof.analyzers.traces.load import LoadOptions
    from mtpprof.analyzers.traces.readers.base import Limits

    if max_gb is None:
        return LoadOptions()
    if not 0 < max_gb < 1e6:
        raise UsageError(f"--max-gb {max_gb:g}: give a number of gigabytes above 0.")
    return LoadOptions(limits=Limits.of_trusted(round(max_gb * 1e9)))
