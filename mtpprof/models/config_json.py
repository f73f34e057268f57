"""Typed access to the keys of a JSON file that a user hands in. No torch here.

A model config is read key by key, and each key that is missing or wrong is an `InputError` that names the file, the key and what
was expected. That is done once, here, so that the readers of the families are plain lists of keys.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

from mtpprof.errors import InputError

MAX_CONFIG_BYTES = 64 * 2**20
"""Configs that name every quantized module one by one have several MB; a weight file mistaken for one has GB."""
MAX_INTEGER = 2**31
MAX_NUMBER = 1e30


@dataclass(frozen=True, slots=True)
class ConfigReader:
    """Keys of a config with their types checked; an error names the file, the key and what it should be."""

    path: Path
    values: dict[str, Any]
    prefix: str = ""
    """Where this object sits in the file, e.g. `text_config.`."""

    def fail(self, key: str, reason: str) -> InputError:
        """The error that names the file, the key and the reason."""
        return InputError(f"{self.path}: {self.prefix}{key} {reason}; correct the file or choose a preset.")

    def find(self, names: Sequence[str]) -> tuple[str, Any]:
        """First of the names that is there and not null, and its value; the value None where none is."""
        return next(
            ((name, self.values[name]) for name in names if self.values.get(name) is not None),
            (names[0], None),
        )

    def is_null(self, name: str) -> bool:
        """Whether the key is there and says null, which in these configs means "none"."""
        return name in self.values and self.values[name] is None

    def integer(
        self, *names: str, default: int | None = None, minimum: int = 1, maximum: int = MAX_INTEGER
    ) -> int:
        """A whole number within bounds, under the first of the names that is there.

        Raises:
            InputError: missing without a default, of another type, or out of bounds.
        """
        key, value = self.find(names)
        if value is None:
            value = default
        if value is None:
            raise self.fail(key, "is missing or null")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(key, "is not a whole number")
        if not minimum <= value <= maximum:
            raise self.fail(key, f"is out of range ({minimum} to {maximum})")
        return value

    def number(self, *names: str, default: float | None = None) -> float:
        """A finite number, under the first of the names that is there.

        Raises:
            InputError: missing without a default, of another type, or not finite.
        """
        key, value = self.find(names)
        if value is None:
            value = default
        if value is None:
            raise self.fail(key, "is missing or null")
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MAX_NUMBER:
            raise self.fail(key, "is not a finite number")
        return float(value)

    def text(self, *names: str) -> str:
        """A text, under the first of the names that is there.

        Raises:
            InputError: missing, or of another type.
        """
        key, value = self.find(names)
        if value is None:
            raise self.fail(key, "is missing or null")
        if not isinstance(value, str):
            raise self.fail(key, "is not a text")
        return value

    def flag(self, name: str) -> bool:
        """True or false; false where it is missing.

        Raises:
            InputError: of another type.
        """
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.fail(name, "is neither true nor false")
        return bool(value)

    def section(self, name: str) -> ConfigReader:
        """An object inside; empty where it is missing.

        Raises:
            InputError: of another type.
        """
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.fail(name, "is not an object")
        return ConfigReader(self.path, value or {}, f"{self.prefix}{name}.")

    def items(self, name: str) -> list[Any] | None:
        """A list; None where it is missing.

        Raises:
            InputError: of another type.
        """
        value = self.values.get(name)
        if value is not None and not isinstance(value, list):
            raise self.fail(name, "is not a list")
        return value


def load_json_object(file: Path) -> ConfigReader:
    """Read a file that holds one JSON object.

    Raises:
        InputError: it cannot be read, is too large, or holds something else.
    """
    try:
        status = file.stat()
        if not S_ISREG(status.st_mode):
            raise InputError(f"{file}: it is not a regular file; give a config.json or its folder.")
        size = status.st_size
        if size > MAX_CONFIG_BYTES:
            raise InputError(f"{file}: {size} bytes is too large for a model config; give the config.json.")
        values = json.loads(file.read_bytes())
    except OSError as error:
        raise InputError(
            f"{file}: it cannot be read ({error.strerror}); give a config.json or its folder."
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: it is not JSON ({error}); give a model's config.json.") from None
    if not isinstance(values, dict):
        raise InputError(f"{file}: it holds no JSON object; give a model's config.json.")
    return ConfigReader(file, values)
