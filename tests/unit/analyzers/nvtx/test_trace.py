from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.analyzers.nvtxtrace import start_end_lanes, write_chrome_trace
from mtpprof.analyzers.readers.nvtx import NvtxCapture
from mtpprof.errors import UsageError
from mtpprof.nvtxformat import EventKind, PayloadType
from tests.unit.analyzers.nvtx.written import (
    REALTIME_OFFSET,
    Written,
    WrittenEvent,
    end,
    mark,
    pop,
    push,
    start,
)


def trace(path: Path, *captures: NvtxCapture) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    written = write_chrome_trace(captures, path)
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    whole = json.loads(data)
    return whole, [event for event in whole["traceEvents"] if event["ph"] != "M"], written


RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=30).map(sorted)


@given(RANGES)
def test_lanes_never_overlap_and_are_as_few_as_can_be(spans: list[tuple[int, int]]) -> None:
    begin = np.array([b for b, _ in spans], np.int64)
    finish = np.array([b + d for b, d in spans], np.int64)
    lanes = start_end_lanes(begin, finish)
    for i in range(len(spans)):
        for j in range(i):
            if lanes[i] == lanes[j]:
                assert finish[j] <= begin[i]
    at_once = max((int(np.count_nonzero((begin <= t) & (finish > t))) for t in begin), default=0)
    assert len(set(lanes)) <= max(at_once, 1 if spans else 0) + sum(d == 0 for _, d in spans)


def test_as_many_slices_out_as_rows_in(tmp_path: Path) -> None:
    events = [push(10, "a"), start(12, 1, "x"), push(15, "b"), mark(16, "m"), pop(20), pop(30), end(40, 1)]
    events += [start(13, 2, "y"), end(50, 2), push(60, "open"), push(61, "inside"), pop(62)]
    capture = Written(rank=1, events=events).capture()
    whole, slices, written = trace(tmp_path / "t.json.gz", capture, Written(events=[mark(5)]).capture())
    assert written == len(slices) == len(capture) + 1
    assert whole["baseTimeNanoseconds"] == REALTIME_OFFSET + 5
    by_name = {event["name"]: event for event in slices}
    assert by_name["b"]["ts"] == 0.01
    assert by_name["b"]["dur"] == 0.005
    assert by_name["a"]["tid"] == by_name["b"]["tid"] == by_name["m"]["tid"]
    assert len({by_name[name]["tid"] for name in "axy"}) == 3
    assert by_name["m"]["ph"] == "i"
    assert by_name["open"]["args"] == {"never closed": True}
    assert by_name["open"]["dur"] == 0.002


def test_no_two_slices_of_a_track_partly_overlap(tmp_path: Path) -> None:
    """Perfetto drops such slices in silence."""
    events = [push(10, "a", domain=1), push(20, "b", domain=2), pop(30, domain=1), pop(40, domain=2)]
    events += [event for i in range(20) for event in (start(50 + i, i + 1, "s"), end(60 + 3 * i, i + 1))]
    _, slices, _ = trace(tmp_path / "t.json", Written(events=events).capture())
    for one in slices:
        for two in slices:
            if one["tid"] == two["tid"] and one["ts"] < two["ts"]:
                one_end, two_end = (round(1000 * (e["ts"] + e["dur"])) for e in (one, two))
                assert one_end <= round(1000 * two["ts"]) or two_end <= one_end


def test_payloads_are_arguments_and_bytes_are_digits(tmp_path: Path) -> None:
    events = [
        WrittenEvent(kind=EventKind.MARK, ns=1, payload_type=PayloadType.UINT64, value=7),
        WrittenEvent(
            kind=EventKind.MARK, ns=2, payload_type=PayloadType.EXTENDED, payloads=((1023, b"\x00\xff"),)
        ),
        mark(3),
    ]
    _, slices, _ = trace(tmp_path / "t.json", Written(events=events).capture())
    assert [event.get("args") for event in slices] == [{"payload": 7}, {"payload": "00ff"}, None]


def test_nothing_makes_an_empty_trace(tmp_path: Path) -> None:
    assert trace(tmp_path / "t.json")[1:] == ([], 0)


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing/t\.json cannot be written"):
        write_chrome_trace([], tmp_path / "missing" / "t.json")
