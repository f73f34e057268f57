"""Draw text as a picture of a terminal, for the README and docs.

mtpprof report RUN | python scripts/picture.py docs/img/report.svg "mtpprof run --tp 4" 60
"""

from __future__ import annotations

import io
import sys

from rich.console import Console
from rich.text import Text

WIDTH = 104


def main() -> None:
    """Read text from standard input and write its first lines as SVG."""
    path, title, lines = sys.argv[1], sys.argv[2], int(sys.argv[3])
    text = "".join(line.rstrip()[:WIDTH] + "\n" for line in sys.stdin.readlines()[:lines])
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text(text))
    console.save_svg(path, title=title)


if __name__ == "__main__":
    main()
