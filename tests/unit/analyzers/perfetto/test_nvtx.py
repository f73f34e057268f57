from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mtpprof.analyzers.perfetto.nvtx import write_trace
from mtpprof.analyzers.traces.nvtx.capture import NvtxCapture
from mtpprof.errors import InputError, UsageError
from mtpprof.nvtxformat import DefinitionKind, EventKind, PayloadType
from tests.unit.analyzers.traces.nvtx.written import (
    REALTIME_OFFSET,
    Written,
    WrittenEvent,
    definition,
    end,
    mark,
    pop,
    push,
    start,
    text_field,
)


def trace(path: Path, *captures: NvtxCapture) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    written = write_trace(captures, path)
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    whole = json.loads(data)
    return whole, [event for event in whole["traceEvents"] if event["ph"] != "M"], written


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
    assert (by_name["m"]["dur"], by_name["m"]["cat"]) == (0, "mark")
    assert by_name["open"]["args"] == {"length": "unknown: never closed"}
    assert by_name["open"]["dur"] == 0.002
    titles = [e["args"]["name"] for e in whole["traceEvents"] if e["name"] == "process_name"]
    assert titles[0] == "rank 1: program --option (pid 42 on host)"


def test_no_two_slices_of_a_track_partly_overlap(tmp_path: Path) -> None:
    """Perfetto drops such slices in silence."""
    names = [definition(DefinitionKind.DOMAIN, n, n, text_field(f"domain {n}")) for n in (1, 2)]
    events = [push(10, "a", domain=1), push(20, "b", domain=2), pop(30, domain=1), pop(40, domain=2)]
    events += [event for i in range(20) for event in (start(50 + i, i + 1, "s"), end(60 + 3 * i, i + 1))]
    _, slices, _ = trace(tmp_path / "t.json", Written(definitions=names, events=events).capture())
    assert len(slices) == 22
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


def test_perfettos_own_format_is_written_too(tmp_path: Path) -> None:
    pytest.importorskip("perfetto", reason="the extra `perfetto` is not installed")
    path = tmp_path / "t.pftrace"
    capture = Written(events=[push(10, "outer"), mark(12, "mark"), pop(20)]).capture()
    assert write_trace([capture], path) == 2
    assert b"outer" in path.read_bytes()


def test_nothing_makes_an_empty_trace(tmp_path: Path) -> None:
    assert trace(tmp_path / "t.json")[1:] == ([], 0)


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing/t\.json cannot be written"):
        write_trace([], tmp_path / "missing" / "t.json")
    with pytest.raises(UsageError, match=r"t\.txt: the name does not tell the format"):
        write_trace([], tmp_path / "t.txt")
