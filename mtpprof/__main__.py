"""Entry point: runs the command line and turns foreseen errors into one sentence and an exit code."""

from __future__ import annotations

import os
import shlex
import sys


def main() -> None:
    """Run `mtpprof`; the one place where errors end."""
    words = sys.argv[1:]
    own = words[: words.index("--")] if "--" in words else words  # after it they are another program's
    debug = "--debug" in own
    arguments = [word for word in own if word != "--debug"] + words[len(own) :]
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except Exception as error:
        if debug:
            raise
        code = _explain(error)
    except KeyboardInterrupt:
        code = _say("interrupted", 130)
    if code:
        sys.exit(code)


def _run(arguments: list[str]) -> int:
    """Run the application; its own exits (`--help`, wrong usage) come back as a code."""
    if getattr(sys, "stdout", None) is None:  # started with it closed: whoever does that wants no output
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - for as long as the process lives
    from mtpprof.cli.app import app
    from mtpprof.errors import UsageError

    if (empty := _empty_word(arguments)) is not None:
        raise UsageError(
            f"word {empty} of the command line is empty: `mtpprof {shlex.join(arguments)}`; give a path or value there, or leave it out."
        )
    try:
        app(args=arguments, prog_name="mtpprof")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0


def _empty_word(words: list[str]) -> int | None:
    """Which word for mtpprof itself is empty, as an unset variable of a shell leaves it; None: none is.

    As a path it would be the folder that one is in, which nobody asked for.
    """
    value = True  # whether this word may be the value of the option before it; the first is the command
    for number, word in enumerate(words, start=1):
        option = word.startswith("-")
        if word == "--" or (word and words[0] == "nvtx" and not option and not value):
            return None  # what follows is another program's
        if not word or (option and word.partition("=")[1:] == ("=", "")):
            return number
        value = option and "=" not in word
    return None


def _explain(error: Exception) -> int:
    """Say what went wrong in one sentence; the exit code that goes with it."""
    from mtpprof.errors import ExitCode, MtpprofError

    if isinstance(error, MtpprofError):
        return _say(str(error), error.exit_code)
    if isinstance(error, BrokenPipeError):
        # The reader of our pipe has gone (`| head`): nothing is wrong, and Python must not complain at exit either.
        _drop_output()
        return ExitCode.OK
    if isinstance(error, OSError) and error.filename is None:
        _drop_output()
        return _say(
            f"the output cannot be written ({error.strerror}); nothing else is wrong.", ExitCode.ENVIRONMENT
        )
    kind = type(error).__name__
    return _say(
        f"internal error ({kind}: {error}); run again with --debug and report what it prints.",
        ExitCode.RUN_FAILED,
    )


def _drop_output() -> None:
    """What is still buffered goes nowhere, so that the flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(sentence: str, code: int) -> int:
    if getattr(sys, "stderr", None) is not None:
        print(f"mtpprof: {sentence}", file=sys.stderr)  # noqa: T201 - the last thing a command says
    return code


if __name__ == "__main__":
    main()
