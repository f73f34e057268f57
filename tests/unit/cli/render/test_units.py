"""Figures as people read them."""

from __future__ import annotations

import pytest

from mtpprof.cli.render import units


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "?"),
        (0, "0 B"),
        (64, "64 B"),
        (28_672, "28.7 kB"),
        (1_835_008, "1.84 MB"),
        (118_947_840, "119 MB"),
        (2.5e9, "2.50 GB"),
        (-16_548, "-16.5 kB"),
        (10.5, "10.5 B"),
    ],
)
def test_bytes(size: float | None, text: str) -> None:
    assert units.bytes_text(size) == text


@pytest.mark.parametrize(
    ("dur_ns", "text"),
    [
        (None, "?"),
        (0, "0 ns"),
        (850, "850 ns"),
        (12_300, "12.3 µs"),
        (4_640_000, "4.64 ms"),
        (-2e9, "-2.00 s"),
    ],
)
def test_times(dur_ns: float | None, text: str) -> None:
    assert units.time_text(dur_ns) == text


def test_unknown_is_never_zero() -> None:
    assert units.count_text(None) == units.percent_text(None) == units.UNKNOWN


@pytest.mark.parametrize(
    ("text", "shown"), [("3", "+3"), ("-3", "-3"), ("0", "0"), ("0 B", "0 B"), ("?", "?")]
)
def test_differences_show_their_sign(text: str, shown: str) -> None:
    assert units.signed(text) == shown


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (65, "1:05"), (3723, "1:02:03")])
def test_elapsed(seconds: float, text: str) -> None:
    assert units.elapsed_text(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(138.0, "138"), (1.5, "1.50")])
def test_counts(count: float, text: str) -> None:
    assert units.count_text(count) == text
