"""The errors a user can meet, and the exit code of each.

Every failure that mtpprof foresees is one of these: it reads as one sentence that names the file or rank, the reason and
what to do. They are caught once, at the edge of the command line.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What a command's exit status means."""

    OK = 0
    CHECK_FAILED = 1
    USAGE = 2
    BAD_INPUT = 3
    RUN_FAILED = 4
    ENVIRONMENT = 5
    INTERRUPTED = 130


class MtpprofError(Exception):
    """Base of all foreseen errors; its text is the sentence shown to the user."""

    exit_code: ClassVar[ExitCode] = ExitCode.RUN_FAILED


class UsageError(MtpprofError):
    """The request cannot be carried out as asked (wrong option, size that does not divide, unknown name)."""

    exit_code = ExitCode.USAGE


class InputError(MtpprofError):
    """A file or directory cannot be used: names it, says why and what to do."""

    exit_code = ExitCode.BAD_INPUT


class RunError(MtpprofError):
    """A run that had started failed: names the rank or engine."""

    exit_code = ExitCode.RUN_FAILED


class MissingEnvironmentError(MtpprofError):
    """The machine lacks something that the request needs."""

    exit_code = ExitCode.ENVIRONMENT


class InterruptedRunError(MtpprofError):
    """The user stopped the run."""

    exit_code = ExitCode.INTERRUPTED
