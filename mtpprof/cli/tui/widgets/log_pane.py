"""What the engine printed, in a pane of its own."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import RichLog

from mtpprof.cli.render.escapes import printable

MAX_LINES = 2_000


class LogPane(RichLog):
    """Shows the lines that it has not shown yet; follows the end unless scrolled away from it."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(
            id=id, max_lines=MAX_LINES, wrap=False, markup=False, highlight=False, auto_scroll=True
        )
        self._shown = 0

    def follow(self, lines: list[str], count: int) -> None:
        """Show what is new.

        Args:
            lines: The last lines.
            count: How many there have been in all.
        """
        if count < self._shown:
            self.clear()
            self._shown = 0
        new = min(count - self._shown, len(lines))
        self._shown = count
        at_end = self.is_vertical_scroll_end
        for line in lines[len(lines) - new :]:
            self.write(Text(printable(line), no_wrap=True), scroll_end=at_end)
