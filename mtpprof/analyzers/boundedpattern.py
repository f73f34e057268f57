"""A regular expression of a user's, which may take any time to match and must not.

The decision: the `regex` package in place of `re`, because it reads the same language and stops when its time is over; `re` cannot be
stopped from another thread, and no look at an expression tells whether it will be slow. The time is one budget for all expressions of a
file and all names, so that many slow matches end as one endless match does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import regex

from mtpprof.errors import InputError

_SHOWN_CHARS = 60


@dataclass(slots=True, kw_only=True)
class Budget:
    """Time that the expressions of one file share."""

    total_s: float = 10.0
    """Ordinary expressions need less than a millisecond for thousands of names."""
    used_s: float = 0.0

    @property
    def left_s(self) -> float:
        """What is left; 0 or less: it is used up."""
        return self.total_s - self.used_s


class BoundedPattern:
    """A compiled expression that refuses to go on once it has used up its time."""

    def __init__(self, text: str, where: str, budget: Budget) -> None:
        """Compile an expression.

        Args:
            text: The expression.
            where: What messages call it.
            budget: Time for all searches together.

        Raises:
            ValueError: it is no regular expression.
        """
        try:
            self._compiled = regex.compile(text)
        except (regex.error, RecursionError) as error:
            raise ValueError(f"{str(error) or 'its pattern is nested too deeply'}") from error
        self._where = where
        self._budget = budget

    def search(self, name: str) -> Any:
        """The first match in `name`, or None; used as `re.Pattern.search` is.

        Raises:
            InputError: its time is used up.
        """
        if self._budget.left_s <= 0:
            raise self._too_slow(name)
        start_s = time.monotonic()
        try:
            return self._compiled.search(name, timeout=self._budget.left_s)
        except TimeoutError as error:
            raise self._too_slow(name) from error
        finally:
            self._budget.used_s += time.monotonic() - start_s

    def _too_slow(self, name: str) -> InputError:
        shown = repr(name[:_SHOWN_CHARS]) + ("..." if len(name) > _SHOWN_CHARS else "")
        return InputError(
            f"{self._where}: the rules of this file need more than {self._budget.total_s:g} s to match the names of these traces, this "
            f"pattern being at {shown}; write it without repetitions of repetitions such as (a+)+."
        )
