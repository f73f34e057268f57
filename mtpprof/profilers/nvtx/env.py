"""The environment under which a process records its NVTX, and the check that it really did.

NVTX ignores a library that it cannot load, in silence. The library therefore creates its file when it is loaded, before
any event: a process without a file did not load it (or never called NVTX), and is reported as such.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from mtpprof.errors import UsageError
from mtpprof.nvtxformat import (
    DIRECTORY_VARIABLE,
    FILE_SUFFIX,
    INJECTION_VARIABLE,
    MAX_BYTES_VARIABLE,
    RANK_VARIABLE,
)
from mtpprof.profilers.nvtx.build import injection_library


def capture_environment(
    directory: Path,
    rank: int | None = None,
    *,
    max_bytes: int | None = None,
    library: Path | None = None,
    inherited: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Variables to add to a child's environment so that it and its children record NVTX into `directory`.

    Args:
        directory: Existing folder; one file per process is written there, named after rank and process id.
        rank: Rank of the process; None: what `MTPPROF_NVTX_RANK`, else `RANK`, holds when it first calls NVTX.
        max_bytes: Size limit of each file; None: 1 GiB.
        library: The injection library; None: the one in the cache, built if need be.
        inherited: Environment that the variables will be added to.

    Raises:
        MissingEnvironmentError: the library cannot be built here.
        UsageError: another NVTX tool is attached to this environment already.
    """
    library = injection_library() if library is None else library
    attached = inherited.get(INJECTION_VARIABLE)
    if attached and not Path(attached).name.startswith("libmtpprof-nvtx-"):
        raise UsageError(
            f"{INJECTION_VARIABLE} already names another NVTX tool ({attached}), and NVTX takes one only; "
            f"unset it or capture without nvtx."
        )
    variables = {
        INJECTION_VARIABLE: str(library),
        DIRECTORY_VARIABLE: str(directory.absolute()),
        RANK_VARIABLE: "" if rank is None else str(rank),
    }
    if max_bytes is not None:
        variables[MAX_BYTES_VARIABLE] = str(max_bytes)
    return variables


def loaded_files(directory: Path) -> list[Path]:
    """Files of the processes that loaded the library, by name."""
    return sorted(directory.glob(f"*{FILE_SUFFIX}"))


def ranks_not_loaded(directory: Path, ranks: Iterable[int]) -> list[int]:
    """Those of `ranks` of which no process loaded the library."""
    loaded = {path.name.split(".", 1)[0] for path in loaded_files(directory)}
    return [rank for rank in ranks if f"rank{rank}" not in loaded]
