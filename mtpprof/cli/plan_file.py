"""Options of `run` from a TOML file: the same names as on the command line, which goes first.

model = ["deepseek-v3.2"]
tp = 4
concurrency = [1, 16]
opt = ["local-argmax=both"]
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import typer

from mtpprof.errors import InputError

NOT_IN_A_FILE = frozenset({"config", "resume", "style"})


def merge_plan_file(context: typer.Context, path: Path | None) -> dict[str, Any]:
    """The command's parameters by name; where the command line is silent, those of the file.

    Raises:
        InputError: the file cannot be read, or has a key or value that `run` does not take.
    """
    values = dict(context.params)
    if path is None:
        return values
    try:
        with path.open("rb") as stream:
            entries = tomllib.load(stream)
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}; give a TOML file with options of `mtpprof run`."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not TOML ({error}); write lines such as tp = 4.") from error
    options = {parameter.name: parameter for parameter in context.command.params}
    for key, value in entries.items():
        name = key.replace("-", "_")
        if name not in options or name in NOT_IN_A_FILE:
            known = ", ".join(sorted(set(filter(None, options)) - NOT_IN_A_FILE))
            raise InputError(f"{path}: {key!r} is not an option of `mtpprof run`; known: {known}.")
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            continue
        option: Any = options[name]
        try:
            values[name] = option.type_cast_value(context, value)
        except Exception as error:
            raise InputError(f"{path}: {key} = {value!r} is not a value for it ({error}).") from error
    return values
