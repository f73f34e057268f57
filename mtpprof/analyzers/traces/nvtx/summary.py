"""NVTX ranges of any number of processes, summed by domain and name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mtpprof.analyzers.traces.nvtx.capture import NvtxCapture, RangeKind
from mtpprof.ranges import PREFIX

_COUNTERS = ("seq=", "index=")
"""Words of our own range names that number the calls: left out, so that calls of one site are one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSummary:
    """All ranges, or all marks, of one name in one domain."""

    domain: str
    """Empty: the default domain."""
    name: str
    is_mark: bool
    count: int
    unclosed: int
    """Ranges never closed; they count, and are in none of the times."""
    total_ns: int
    min_ns: int | None
    """None: no range of it was closed, or it is a mark; likewise the maximum and the mean."""
    max_ns: int | None

    @property
    def mean_ns(self) -> float | None:
        """Mean length of the closed ranges."""
        closed = self.count - self.unclosed
        return self.total_ns / closed if closed and not self.is_mark else None


def summarize(captures: Iterable[NvtxCapture]) -> list[RangeSummary]:
    """Every (domain, name), most time first, then marks and the rest by count."""
    found: dict[tuple[str, str, bool], RangeSummary] = {}
    for capture in captures:
        for key, part in _groups(capture):
            found[key] = _merged(found[key], part) if key in found else part
    return sorted(found.values(), key=lambda s: (-s.total_ns, -s.count, s.domain, s.name))


def group_name(name: str) -> str:
    """The name under which calls of one site are summed."""
    if not name.startswith(PREFIX):
        return name
    return " ".join(word for word in name.split(" ") if not word.startswith(_COUNTERS))


def _groups(capture: NvtxCapture) -> Iterable[tuple[tuple[str, str, bool], RangeSummary]]:
    group_codes: dict[str, int] = {}
    code = np.array(
        [group_codes.setdefault(group_name(name), len(group_codes)) for name in capture.names], np.int64
    )
    names = tuple(group_codes)
    mark = capture.kind == RangeKind.MARK
    keys = (capture.domain.astype(np.int64) * len(names) + code[capture.name]) * 2 + mark
    order = np.argsort(keys, kind="stable")
    distinct, first, counts = np.unique(keys[order], return_index=True, return_counts=True)
    dur = capture.dur_ns[order]
    for key, start, count in zip(distinct.tolist(), first.tolist(), counts.tolist(), strict=True):
        domain, name = capture.domains[key // 2 // len(names)], names[key // 2 % len(names)]
        lengths = dur[start : start + count]
        closed = lengths[lengths >= 0]
        timed = len(closed) > 0 and not key % 2
        yield (
            (domain, name, bool(key % 2)),
            RangeSummary(
                domain=domain,
                name=name,
                is_mark=bool(key % 2),
                count=count,
                unclosed=count - len(closed),
                total_ns=int(closed.sum()),
                min_ns=int(closed.min()) if timed else None,
                max_ns=int(closed.max()) if timed else None,
            ),
        )


def _merged(a: RangeSummary, b: RangeSummary) -> RangeSummary:
    lows = [x for x in (a.min_ns, b.min_ns) if x is not None]
    highs = [x for x in (a.max_ns, b.max_ns) if x is not None]
    return RangeSummary(
        domain=a.domain,
        name=a.name,
        is_mark=a.is_mark,
        count=a.count + b.count,
        unclosed=a.unclosed + b.unclosed,
        total_ns=a.total_ns + b.total_ns,
        min_ns=min(lows, default=None),
        max_ns=max(highs, default=None),
    )
