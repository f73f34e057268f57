"""What is filled in on the Launch page, and the command line that does the same."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from mtpprof.errors import UsageError
from mtpprof.profilers.plan import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchForm:
    """What is filled in; texts as typed. Empty: the default of `mtpprof run`."""

    models: str = ""
    tp: str = "4"
    concurrency: str = ""
    draft_tokens: str = ""
    settings: dict[str, Setting] = field(default_factory=dict)
    """By optimization; `both` everywhere is the default of `run`."""
    more: str = ""
    """Further options, as on the command line."""

    def words(self) -> list[str]:
        """Arguments of `mtpprof` that do this.

        Raises:
            UsageError: a field that cannot be read.
        """
        words = ["run", "--tp", str(_number("TP", self.tp))]
        for model in _split(self.models):
            words += ["--model", model]
        for text in _split(self.concurrency):
            words += ["--concurrency", str(_number("concurrency", text))]
        if self.draft_tokens.strip():
            words += ["--draft-tokens", str(_number("draft tokens", self.draft_tokens))]
        if any(setting != "both" for setting in self.settings.values()):
            for name, setting in self.settings.items():
                words += ["--opt", f"{name}={setting}"]
        try:
            return words + shlex.split(self.more)
        except ValueError as error:
            raise UsageError(f"more options: {error}; quote them as in a shell.") from error


def _split(text: str) -> list[str]:
    return [part for part in re.split(r"[,\s]+", text) if part]


def _number(name: str, text: str) -> int:
    text = text.strip()
    if not text.isdecimal() or len(text) > 7:
        raise UsageError(f"{name} {text or 'is empty'}: give a whole number.")
    return int(text)


def command_text(words: Sequence[str]) -> str:
    """The command line, to copy."""
    return shlex.join(["mtpprof", *words])
