"""SQLite files of profilers: opened without a trace of us, their tables by name, their columns as numbers whatever they hold.

The decision: a column of numbers may hold text, nothing, or a number that does not fit, in a damaged or an edited file. A record with such
a value in a column that is needed is not read as 0: it is left out and counted.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mtpprof.analyzers.traces.readers.base import TraceFormatError
from mtpprof.analyzers.traces.readers.codecs import GZIP_MAGIC, MAGIC_BYTES, codec_of
from mtpprof.analyzers.traces.table import MISSING
from mtpprof.analyzers.traces.verdicts import Verdict
from mtpprof.files import identity

_LISTING = "select name from sqlite_master where type = 'table'"
SQLITE_MAGIC = b"SQLite format 3\0"
MAX_NS = 1 << 60
"""Times and lengths beyond it are damage: the base of a file is added to them, and all of it stays within int64."""


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that writes nothing, also not beside the file.

    Raises:
        TraceFormatError: the file is compressed, or no database that can be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(MAGIC_BYTES)
        if start.startswith(GZIP_MAGIC) or codec_of(start) is not None:
            raise TraceFormatError(
                str(path),
                "is a compressed database",
                verdict=Verdict.UNREADABLE,
                advice="decompress it first",
            )
        uri = f"file:{quote(str(identity(path)))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            yield connection
    except (sqlite3.Error, OSError, OverflowError, UnicodeError) as error:
        raise TraceFormatError(
            str(path), f"cannot be read as a database ({error})", verdict=Verdict.UNREADABLE
        ) from error


def tables(connection: sqlite3.Connection) -> dict[str, frozenset[str]]:
    """Columns of every table, by its name. Views are no tables: one in a file that anybody wrote may never end."""
    listing = connection.execute(_LISTING).fetchall()
    return {
        str(name): frozenset(
            str(row[1]) for row in connection.execute(f"pragma table_info({quoted(str(name))})")
        )
        for (name,) in listing
    }


def table_names(path: Path) -> frozenset[str]:
    """Names of the tables of a database; empty where it cannot be read."""
    try:
        with opened(path) as connection:
            listing = connection.execute(_LISTING)
            return frozenset(str(name) for (name,) in listing)
    except TraceFormatError:
        return frozenset()


def variants(base: str, names: Sequence[str]) -> list[str]:
    """The tables that hold what `base` holds: itself, and those with a number or version behind its name."""
    pattern = re.compile(rf"{re.escape(base)}(?:_?[vV]?\d+)?", re.IGNORECASE)
    return sorted(name for name in names if pattern.fullmatch(name))


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def number(column: str, present: frozenset[str], absent: str = str(MISSING)) -> str:
    """SQL of an integer: what the column holds, or `absent` where there is no such column or it holds nothing."""
    if column not in present:
        return absent
    return f"coalesce(cast({quoted(column)} as integer), {absent})"


def is_number(column: str, present: frozenset[str], *, low: int, high: int, optional: bool = False) -> str:
    """SQL of the condition that a column holds a number within bounds, or the text of one.

    Args:
        column: Its name.
        present: The columns of the table.
        low: Least value.
        high: Largest value.
        optional: Nothing will do as well, and so will the lack of the column.
    """
    if column not in present:
        return "1" if optional else "0"
    name = quoted(column)
    as_text = " or ".join(f"cast(cast({name} as {kind}) as text) = {name}" for kind in ("integer", "real"))
    kind = f"(typeof({name}) in ('integer', 'real') or {as_text})"
    found = f"{kind} and cast({name} as integer) between {low} and {high}"
    return f"({name} is null or {found})" if optional else f"({name} is not null and {found})"


def count(connection: sqlite3.Connection, table: str, where: str) -> int:
    """Records of a table under a condition."""
    (found,) = connection.execute(f"select count(*) from {quoted(table)} where {where}").fetchone()
    return int(found)


def rows(connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Some columns of a small table."""
    return connection.execute(f"select {', '.join(map(quoted, columns))} from {quoted(table)}").fetchall()
