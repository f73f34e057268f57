"""Golden files: what a command writes, byte for byte, in `tests/data/golden`.

`pytest --golden-update tests/unit/cli/render/test_goldens.py` writes them anew; look at the difference before you commit it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "data" / "golden"


@dataclass(frozen=True, slots=True)
class Golden:
    """The golden files, to compare with or to write."""

    update: bool

    def check(self, name: str, text: str) -> None:
        """Compare a text with the golden file of this name, or write it there.

        Raises:
            AssertionError: the file is another one, or is missing.
        """
        path = FOLDER / name
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        assert path.is_file(), f"{path} is missing: write it with --golden-update"
        assert text == path.read_bytes().decode(), f"{name} has changed: see --golden-update"
