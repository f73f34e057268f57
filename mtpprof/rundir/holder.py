"""Which process carries a run out: written into the run's lock file, so that whoever watches can stop it.

The decision: a number alone is not trusted. A process is told by its host, its container (the namespace of process numbers), the boot of
the kernel and the time at which it started; only if all of them agree is it sent anything, through a handle that cannot pass to another
process meanwhile.
"""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import msgspec

from mtpprof.errors import RunError

PROC = Path("/proc")
_START_FIELD = 19
"""Of /proc/PID/stat behind the name, which may hold anything: ticks since the boot at which the process started."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process; texts are empty where the system does not tell."""

    pid: int
    host: str
    boot: str = ""
    namespace: str = ""
    started: str = ""


def this_process() -> Holder:
    """The process that asks."""
    return Holder(
        pid=os.getpid(),
        host=socket.gethostname(),
        boot=_text(PROC / "sys/kernel/random/boot_id"),
        namespace=_namespace(),
        started=_started(os.getpid()),
    )


def interrupt(holder: Holder) -> None:
    """Send a process what Ctrl-C sends.

    Raises:
        RunError: it cannot be done from here; why, and what to do.
    """
    here = this_process()
    if holder.host != here.host:
        raise RunError(f"The run is carried out on {holder.host}; stop it from there.")
    if holder.boot != here.boot or holder.namespace != here.namespace:
        raise RunError(
            f"Process {holder.pid} of the run is not to be seen from here (another container); stop it there."
        )
    if not holder.started or not hasattr(os, "pidfd_open"):
        raise RunError(
            f"This system does not tell whether process {holder.pid} is still the run's; stop it where it was started."
        )
    try:
        handle = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        raise RunError(f"Process {holder.pid} of the run is gone.") from None
    except OSError as error:
        raise RunError(f"Process {holder.pid} of the run cannot be reached ({error.strerror}).") from error
    try:
        if _started(holder.pid) != holder.started:
            raise RunError(
                f"Process {holder.pid} of the run is gone; that number belongs to another one now."
            )
        signal.pidfd_send_signal(handle, signal.SIGINT)
    except PermissionError:
        raise RunError(
            f"Process {holder.pid} of the run belongs to another user; only they can stop it."
        ) from None
    except ProcessLookupError:
        raise RunError(f"Process {holder.pid} of the run is gone.") from None
    finally:
        os.close(handle)


def _started(pid: int) -> str:
    fields = _text(PROC / str(pid) / "stat").rpartition(")")[2].split()
    return fields[_START_FIELD] if len(fields) > _START_FIELD else ""


def _namespace() -> str:
    try:
        return str((PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
