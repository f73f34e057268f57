"""A switch with more than two settings, on one line."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Static


class Choice(Static, can_focus=True):
    """Shows all settings, the chosen one in brackets."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,space,enter,l", "turn(1)", "Next setting", id="choice.next"),
        Binding("left,h", "turn(-1)", "Previous setting", show=False, id="choice.previous"),
    ]
    DEFAULT_CSS = """
    Choice { width: auto; height: 1; }
    Choice:focus { text-style: bold; background: $primary; color: $text; }
    Choice:disabled { text-style: dim; }
    """

    class Changed(Message):
        """Another setting was chosen."""

        def __init__(self, choice: Choice, value: str) -> None:
            super().__init__()
            self.choice, self.value = choice, value

    def __init__(self, settings: tuple[str, ...], value: str, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._settings = settings
        self._value = value

    @property
    def value(self) -> str:
        """The chosen setting."""
        return self._value

    def on_mount(self) -> None:
        """Show it."""
        self._draw()

    def _draw(self) -> None:
        words = (f"[{name}]" if name == self._value else f" {name} " for name in self._settings)
        self.update(Text("".join(words)))

    def action_turn(self, direction: int) -> None:
        """Choose the next setting."""
        index = self._settings.index(self._value)
        self._value = self._settings[(index + direction) % len(self._settings)]
        self._draw()
        self.post_message(self.Changed(self, self._value))

    def on_click(self) -> None:
        """The same with the mouse."""
        self.focus()
        self.action_turn(1)
