"""Where calls and bytes on Live are known from is said beside them."""

from __future__ import annotations

import pytest

from mtpprof.analyzers.live.quick_counts import PerStep
from mtpprof.cli.tui.screens.live import traffic_cells
from mtpprof.cli.tui.sources import Traffic

FEW, MANY = PerStep(calls=9, payload_bytes=1000), PerStep(calls=12, payload_bytes=2_000_000)


@pytest.mark.parametrize(
    ("traffic", "cells"),
    [
        (None, ("", "")),
        (Traffic(expected=None, seen=None), ("?", "?")),
        (Traffic(expected=MANY, seen=None), ("12 expected", "2.00 MB")),
        (Traffic(expected=None, seen=FEW), ("9 seen", "1.00 kB")),
        (Traffic(expected=FEW, seen=FEW), ("9 seen, ok", "1.00 kB")),
        (Traffic(expected=MANY, seen=FEW), ("9 seen, 12 expected!", "1.00 kB, 2.00 MB expected!")),
        (
            Traffic(expected=FEW, seen=PerStep(calls=9, payload_bytes=1)),
            ("9 seen, ok", "1 B, 1.00 kB expected!"),
        ),
        (Traffic(expected=None, seen=PerStep(calls=0, payload_bytes=0)), ("0 seen", "0 B")),
    ],
)
def test_cells(traffic: Traffic | None, cells: tuple[str, str]) -> None:
    assert traffic_cells(traffic) == cells
