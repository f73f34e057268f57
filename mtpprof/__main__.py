"""Entry point: runs the command line and turns foreseen errors into one sentence and an exit code."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run `mtpprof`; the one place where errors end."""
    from mtpprof.cli.app import app
    from mtpprof.errors import ExitCode, MtpprofError

    words = sys.argv[1:]
    own = words[: words.index("--")] if "--" in words else words  # after it they are another program's
    debug = "--debug" in own
    arguments = [word for word in own if word != "--debug"] + words[len(own) :]
    try:
        app(args=arguments, prog_name="mtpprof")
    except MtpprofError as error:
        if debug:
            raise
        _say(f"mtpprof: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _say("mtpprof: interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our pipe has gone (`| head`): nothing is wrong, and Python must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.OK)
    except Exception as error:
        if debug:
            raise
        _say(
            f"mtpprof: internal error ({type(error).__name__}: {error}); run again with --debug and report what it prints."
        )
        sys.exit(ExitCode.RUN_FAILED)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr)  # noqa: T201 - the last thing a command says


if __name__ == "__main__":
    main()
