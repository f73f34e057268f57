"""A headless Chromium spoken to over pipes (DevTools protocol), without any driver package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


class Browser:
    """One page. Use as a context manager: nothing of the browser is left behind."""

    def __init__(self, width: int, height: int, patience_s: float = 120) -> None:
        assert CHROMIUM is not None
        self._patience_s = patience_s
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read_end, self._out = os.pipe()
        self._in, write_end = os.pipe()
        command = f'exec "$@" 3<&{read_end} 4>&{write_end}'  # Chromium speaks on descriptors 3 and 4
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                command,
                "bash",
                CHROMIUM,
                *FLAGS,
                f"--window-size={width},{height}",
                f"--user-data-dir={self._profile.name}",
                "about:blank",
            ],
            pass_fds=(read_end, write_end),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_end)
        os.close(write_end)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None

    def __enter__(self) -> Browser:
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._profile.cleanup()

    def open(self, address: str) -> None:
        """Go to an address; does not wait for the page."""
        self._call("Page.navigate", url=address)

    def evaluate(self, script: str) -> Any:
        """Value of a JavaScript expression, of what it promises where it is a promise."""
        result = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise AssertionError(result["exceptionDetails"])
        return result["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Until a JavaScript expression is true."""
        deadline = time.monotonic() + self._patience_s
        while not self.evaluate(f"!!({condition})"):
            assert time.monotonic() < deadline, f"not within {self._patience_s} s: {condition}"
            time.sleep(0.2)

    def screenshot(self, path: Path) -> None:
        """Picture of the page as PNG."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._next_message())
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]

    def _next_message(self) -> bytes:
        deadline = time.monotonic() + self._patience_s
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser said nothing for {self._patience_s} s"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return message
