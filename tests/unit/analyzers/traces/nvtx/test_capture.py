from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtpprof.analyzers.perfetto.nvtx import write_trace
from mtpprof.analyzers.traces.nvtx.capture import RangeKind, load_capture, load_captures
from mtpprof.analyzers.traces.nvtx.chunks import NotNvtxFileError
from mtpprof.analyzers.traces.nvtx.nccl import communicators, nccl_calls
from mtpprof.analyzers.traces.nvtx.summary import summarize
from mtpprof.analyzers.traces.nvtx.table import event_table
from mtpprof.analyzers.traces.verdicts import Verdict
from mtpprof.errors import InputError
from mtpprof.nvtxformat import DefinitionKind, EventKind, PayloadType
from tests.unit.analyzers.traces.nvtx.written import (
    PAGE,
    REALTIME_OFFSET,
    Written,
    WrittenEvent,
    definition,
    end,
    mark,
    parse,
    pop,
    push,
    schema_definition,
    start,
    text_field,
)


def verdicts(written: Written) -> list[Verdict]:
    return [problem.verdict for problem in written.capture().problems]


def test_ranges_have_real_time_length_name_thread_and_depth() -> None:
    capture = Written(
        rank=3, events=[push(100, "outer"), push(110, "inner"), mark(115, "mark"), pop(120), pop(190)]
    ).capture()
    assert [capture.names[code] for code in capture.name] == ["outer", "inner", "mark"]
    assert (capture.ts_ns - REALTIME_OFFSET).tolist() == [100, 110, 115]
    assert capture.dur_ns.tolist() == [90, 10, 0]
    assert capture.depth.tolist() == [0, 1, 2]
    assert capture.kind.tolist() == [RangeKind.PUSH_POP, RangeKind.PUSH_POP, RangeKind.MARK]
    assert (capture.rank, capture.pid, capture.host, capture.command) == (3, 42, "host", "program --option")
    assert capture.threads == {1: "worker"}
    assert capture.problems == ()


def test_start_end_ranges_cross_and_end_on_another_thread() -> None:
    capture = Written(
        events=[start(10, 7, "a"), start(20, 8, "b"), end(30, 7, thread=2), end(40, 8)]
    ).capture()
    assert capture.dur_ns.tolist() == [20, 20]
    assert capture.depth.tolist() == [-1, -1]
    assert capture.kind.tolist() == [RangeKind.START_END] * 2


def test_rows_are_sorted_by_time_over_threads() -> None:
    capture = Written(
        events=[push(50, thread=1), pop(60, thread=1), push(10, thread=2), pop(70, thread=2)]
    ).capture()
    assert (capture.ts_ns - REALTIME_OFFSET).tolist() == [10, 50]
    assert capture.thread.tolist() == [2, 1]


def test_an_open_range_is_kept_with_unknown_length() -> None:
    written = Written(events=[push(10, "a"), push(20, "b"), pop(30)], closed=False)
    capture = written.capture()
    assert capture.dur_ns.tolist() == [-1, 10]
    assert verdicts(written) == [Verdict.NOT_CLOSED, Verdict.OPEN_RANGES]


def test_a_pop_without_its_push_does_not_shift_the_pairs_after_it() -> None:
    written = Written(events=[pop(5), push(10, "a"), pop(20)])
    assert written.capture().dur_ns.tolist() == [10]
    assert verdicts(written) == [Verdict.LONE_ENDS]


def test_domains_of_one_name_are_one_domain_and_one_stack() -> None:
    names = [definition(DefinitionKind.DOMAIN, number, number, text_field("NCCL")) for number in (1, 2)]
    capture = Written(definitions=names, events=[push(10, "a", domain=1), pop(20, domain=2)]).capture()
    assert capture.domains == ("", "NCCL")
    assert capture.dur_ns.tolist() == [10]


def test_categories_have_the_name_of_their_domain_or_their_number() -> None:
    names = [
        definition(DefinitionKind.DOMAIN, 1, 1, text_field("one")),
        definition(DefinitionKind.CATEGORY, 1, 7, text_field("seven")),
    ]
    events = [
        WrittenEvent(kind=EventKind.MARK, ns=1, category=7, domain=1),
        WrittenEvent(kind=EventKind.MARK, ns=2, category=7),
        WrittenEvent(kind=EventKind.MARK, ns=3),
    ]
    capture = Written(definitions=names, events=events).capture()
    assert [capture.categories[code] for code in capture.category] == ["seven", "7", ""]


def test_the_last_definition_of_an_id_holds() -> None:
    """A forked child copies its parent's definitions, which may have gone on after the fork."""
    names = [definition(DefinitionKind.STRING, 0, 1, text_field(text)) for text in ("parent", "child")]
    capture = Written(
        definitions=names, events=[WrittenEvent(kind=EventKind.MARK, ns=1, message=1)]
    ).capture()
    assert capture.names[capture.name[0]] == "child"


def test_lost_names_are_shown_by_number_and_said() -> None:
    event = WrittenEvent(kind=EventKind.MARK, ns=1, message=17, domain=4)
    written = Written(events=[event])
    capture = written.capture()
    assert capture.names[capture.name[0]] == "string 17"
    assert capture.domains[capture.domain[0]] == "domain 4"
    assert verdicts(written) == [Verdict.DAMAGED_TEXT]


def test_events_of_the_payload_functions_are_named_by_their_schema() -> None:
    layout = schema_definition(
        0, 1 << 24, [(0x400, 75, 8, 0, "message"), (0, 18, 0, 8, "size")], static_bytes=16
    )
    payload = (1 << 24, b"named\0\0\0" + (99).to_bytes(8, "little"))
    event = WrittenEvent(kind=EventKind.MARK, ns=1, payload_type=PayloadType.EXTENDED, payloads=(payload,))
    capture = Written(definitions=[layout], events=[event]).capture()
    assert capture.names[capture.name[0]] == "named"
    assert capture.payload(0) == {"message": "named", "size": 99}


def test_a_payload_that_was_too_large_says_so() -> None:
    event = WrittenEvent(
        kind=EventKind.MARK, ns=1, payload_type=PayloadType.EXTENDED, payloads=((1023, b"12345678"),)
    )
    data = bytearray(Written(events=[event]).data())
    at = data.index((1023).to_bytes(8, "little")) + 8
    data[at : at + 8] = (1 << 20).to_bytes(4, "little") + bytes(4)
    assert parse(bytes(data)).payload(0) == "1048576 bytes, not kept"


def test_dropped_events_are_said() -> None:
    written = Written(events=[mark(1)], dropped=5)
    assert verdicts(written) == [Verdict.DROPPED_EVENTS]
    assert written.capture().dropped_events == 5


def test_the_clock_residual_is_the_largest_disagreement() -> None:
    written = Written(events=[mark(1)], clock_drift_ns=5_000_000)
    assert written.capture().clock_residual_ns >= 5_000_000
    assert verdicts(written) == [Verdict.UNALIGNED_CLOCKS]
    assert Written(events=[mark(1)]).capture().clock_residual_ns == 20


def test_a_cut_file_gives_what_is_whole() -> None:
    events = [event for i in range(1000) for event in (push(10 * i, f"name {i}"), pop(10 * i + 5))]
    data = Written(events=events).data()
    whole = parse(data)
    cut = parse(data[: len(data) // 2])
    assert 0 < len(cut) < len(whole) == 1000
    assert cut.problems[0].verdict is Verdict.TRUNCATED
    kept = [cut.names[code] for code in cut.name]
    assert kept[:100] == [f"name {i}" for i in range(100)]


def test_what_is_cut_off_damaged_or_dropped_was_emitted_all_the_same() -> None:
    """Names come first in the file, so that half of one with 50 ranges may hold none of them."""
    names = [definition(DefinitionKind.STRING, 0, i, text_field(f"name {i}" * 20)) for i in range(200)]
    written = Written(
        events=[event for i in range(50) for event in (push(10 * i), pop(10 * i + 5))], definitions=names
    )
    data = written.data()
    cut = parse(data[: len(data) // 2])
    assert len(cut) == 0
    assert cut.problems[0].verdict is Verdict.TRUNCATED
    assert Verdict.NO_EVENTS not in {problem.verdict for problem in cut.problems}
    assert verdicts(Written(dropped=7)) == [Verdict.DROPPED_EVENTS]


def test_a_process_without_events_has_no_rows() -> None:
    written = Written()
    assert len(written.capture()) == 0
    assert verdicts(written) == [Verdict.NO_EVENTS]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"MTPNVTX\0", "too short"),
        (b"x" * 5000, "does not begin"),
        (b"MTPNVTX\0\x63" + bytes(5000), "byte order"),
    ],
)
def test_other_files_are_refused_with_the_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "pid1.nvtx"
    path.write_bytes(data)
    with pytest.raises(InputError, match=reason):
        load_capture(path)


def test_another_version_is_refused() -> None:
    data = bytearray(Written().data())
    data[8] = 99
    with pytest.raises(NotNvtxFileError, match="format 99"):
        parse(bytes(data))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"pid7\.nvtx cannot be read"):
        load_capture(tmp_path / "pid7.nvtx")


def test_captures_of_a_folder_come_by_rank(tmp_path: Path) -> None:
    for name, rank in (("a", 2), ("b", -1), ("c", 0)):
        (tmp_path / f"{name}.nvtx").write_bytes(Written(rank=rank, events=[mark(1)]).data())
    assert [capture.rank for capture in load_captures(tmp_path)] == [0, 2, None]


# ---- hostile bytes ---------------------------------------------------------------------------------------------------

SAMPLE = Written(
    definitions=[
        definition(DefinitionKind.DOMAIN, 1, 1, text_field("NCCL")),
        definition(DefinitionKind.STRING, 1, 1, text_field("ncclAllGather")),
        schema_definition(
            1,
            (1 << 24) + 1,
            [
                (0, 18, 0, 0, "NCCL communicator ID"),
                (0, 22, 0, 8, "Message size [bytes]"),
                (0, 5, 0, 16, "No. of ranks"),
            ],
            static_bytes=24,
        ),
        schema_definition(
            1,
            1 << 24,
            [(0x10, 18, 2, 0, "array"), (0, 1 << 24, 0, 16, "itself"), (0x400, 75, 4, 24, "text")],
            static_bytes=32,
        ),
    ],
    events=[
        push(10, "text"),
        WrittenEvent(
            kind=EventKind.PUSH,
            ns=20,
            domain=1,
            message=1,
            payload_type=PayloadType.EXTENDED,
            payloads=((1 << 24, bytes(range(32))),),
        ),
        pop(30, domain=1),
        WrittenEvent(
            kind=EventKind.PUSH,
            ns=32,
            domain=1,
            message=1,
            payload_type=PayloadType.EXTENDED,
            payloads=(((1 << 24) + 1, bytes(range(24))),),
        ),
        pop(35, domain=1),
        pop(40),
        start(50, 9, "free", thread=2),
        end(60, 9, thread=2),
        mark(70, "m", thread=2),
    ],
).data()
INTERESTING = st.one_of(
    st.integers(0, len(SAMPLE) - 1),
    st.integers(0, 416),
    st.integers(PAGE, PAGE + 600),
    st.integers(2 * PAGE, 2 * PAGE + 300),
)
EDITS = st.lists(
    st.tuples(
        INTERESTING, st.one_of(st.binary(min_size=1, max_size=8), st.just(b"\xff" * 8), st.just(bytes(8)))
    ),
    max_size=6,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(edits=EDITS, cut=st.one_of(st.none(), st.integers(0, len(SAMPLE))))
def test_damaged_bytes_give_a_capture_or_a_named_refusal(
    edits: list[tuple[int, bytes]], cut: int | None
) -> None:
    data = bytearray(SAMPLE)
    for at, new in edits:
        data[at : at + len(new)] = new
    try:
        capture = parse(bytes(data[:cut]))
    except NotNvtxFileError:
        return
    for row in range(len(capture)):
        capture.payload(row)
        capture.end_payload(row)
    summarize([capture])
    nccl_calls(capture)
    communicators(capture)
    event_table(capture)
    with tempfile.TemporaryDirectory() as folder:
        assert write_trace([capture], Path(folder) / "t.json") == len(capture)
    columns = (capture.ts_ns, capture.dur_ns, capture.name, capture.domain, capture.thread, capture.depth)
    assert {len(column) for column in columns} == {len(capture)}
    assert np.all(np.diff(capture.ts_ns) >= 0)
    assert np.all(capture.dur_ns >= -1)
    assert all(problem.sentence.startswith("file.nvtx: ") for problem in capture.problems)


def test_a_huge_length_allocates_nothing() -> None:
    data = bytearray(SAMPLE)
    data[PAGE + 8 : PAGE + 16] = (1 << 50).to_bytes(8, "little")
    tracemalloc.start()
    capture = parse(bytes(data))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(capture) == 0
    assert peak < 1 << 20
    assert capture.problems[0].verdict is Verdict.DAMAGED_EVENTS
