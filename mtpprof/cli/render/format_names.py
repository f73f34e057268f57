"""The formats that reports and comparisons have; who writes each is in `render.formats`, which is imported only to write one."""

from __future__ import annotations

from enum import StrEnum


class ReportFormat(StrEnum):
    """How a report or a comparison is written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MD = "md"
    """Tables ready for a pull request."""
    HTML = "html"
    """One self-contained page."""
