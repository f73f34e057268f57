"""Entry point: runs the command line and turns foreseen errors into one sentence and an exit code."""

from __future__ import annotations

import os
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

    try:
        app(args=arguments, prog_name="mtpprof")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0


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
