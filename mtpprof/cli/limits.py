"""`--max-gb`: how much of a file is read before it is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mtpprof.errors import UsageError

if TYPE_CHECKING:
    from mtpprof.analyzers.loading import LoadOptions

MaxGb = Annotated[
    float | None,
    typer.Option(
        metavar="GB",
        help="Largest text of one file, decompressed, however well it is compressed; "
        "without it 64 GiB, and no more than 200 times the file.",
    ),
]


def load_options(max_gb: float | None) -> LoadOptions:
    """How files are read.

    Raises:
        UsageError: not a size.
    """
    from mtpprof.analyzers.loading import LoadOptions
    from mtpprof.analyzers.readers import Limits

    if max_gb is None:
        return LoadOptions()
    if not 0 < max_gb < 1e6:
        raise UsageError(f"--max-gb {max_gb:g}: give a number of gigabytes above 0.")
    return LoadOptions(limits=Limits.of_trusted(round(max_gb * 1e9)))
