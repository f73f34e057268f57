"""Input as it really arrives: one seed per kind of damage that somebody has reported, each with the verdict it must get."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mtpprof.analyzers.traces.readers import bytestream
from mtpprof.analyzers.traces.readers.base import Limits, TraceFormatError
from mtpprof.analyzers.traces.table import EventTable
from mtpprof.analyzers.traces.verdicts import Verdict
from tests.unit.analyzers.chrome import METADATA, Event, complete, read_one, read_text, some_events, text

COUNT = 3000
WHOLE = text(some_events(COUNT))
COMPACT = text(some_events(COUNT), style="compact")


def gzipped(content: str) -> bytes:
    return gzip.compress(content.encode(), 1)


def cut_in_an_event(content: str) -> str:
    return content[: content.index('"k1"', len(content) // 2)]


def with_raw_name(raw: bytes) -> bytes:
    """A whole trace in which one event's name is replaced by raw bytes."""
    return WHOLE.encode().replace(b'"k1"', b'"' + raw + b'"', 1)


def two_writers(block: int = 4096) -> bytes:
    """Two traces written to one path in turns."""
    other = {**METADATA, "distributedInfo": {"rank": 2, "world_size": 4}}
    first, second = WHOLE.encode(), text(some_events(COUNT, 5000.0), other).encode()
    parts = [text_[i : i + block] for i in range(0, len(first), block) for text_ in (first, second)]
    return b"".join(parts)


@dataclass(frozen=True, kw_only=True)
class Seed:
    """A damaged trace that still gives a table."""

    content: bytes
    verdicts: set[Verdict]
    rows: int | None = COUNT
    """Exact number of rows; None: some."""


SALVAGED: dict[str, Seed] = {
    "google/trace-viewer#145: last brace missing": Seed(
        content=WHOLE.rstrip()[:-1].encode(), verdicts={Verdict.TRUNCATED}
    ),
    "perfetto#926: cut in the middle": Seed(
        content=cut_in_an_event(WHOLE).encode(), verdicts={Verdict.TRUNCATED}, rows=None
    ),
    "the same, compact": Seed(content=cut_in_an_event(COMPACT).encode(), verdicts={Verdict.TRUNCATED}, rows=None),
    "the same, compressed": Seed(
        content=gzipped(cut_in_an_event(WHOLE)), verdicts={Verdict.TRUNCATED}, rows=None
    ),
    "compressed text cut": Seed(
        content=gzipped(WHOLE)[:-3000], verdicts={Verdict.TRUNCATED}, rows=None
    ),
    "opencl-intercept-layer#367: list never closed, trailing comma": Seed(
        content=("[" + ",\n".join(json.dumps(event) for event in some_events(COUNT)) + ",\n").encode(),
        verdicts={Verdict.TRUNCATED},
    ),
    "list never closed, no comma": Seed(
        content=json.dumps(some_events(COUNT))[:-1].encode(), verdicts={Verdict.TRUNCATED}
    ),
    "trailing comma in the list": Seed(
        content=WHOLE.replace("\n  ]", ",\n  ]").encode(), verdicts=set()
    ),
    "trailing comma in the object": Seed(
        content=text(some_events(COUNT), tail=",\n").encode(), verdicts=set()
    ),
    "sglang#15326: many gzip members": Seed(
        content=b"".join(gzipped(WHOLE[i : i + 900]) for i in range(0, len(WHOLE), 900)), verdicts=set()
    ),
    "gzip members with zero padding": Seed(
        content=gzipped(WHOLE[:1000]) + bytes(512) + gzipped(WHOLE[1000:]) + bytes(512), verdicts=set()
    ),
    "garbage after the compressed text": Seed(content=gzipped(WHOLE) + b"garbage", verdicts={Verdict.DAMAGED_TEXT}),
    "garbage after the object": Seed(content=WHOLE.encode() + b"\nDone.\n", verdicts={Verdict.DAMAGED_TEXT}),
    "zero bytes after the object": Seed(content=WHOLE.encode() + bytes(4096), verdicts=set()),
    "pytorch#146900: unescaped quotes in a name": Seed(
        content=with_raw_name(rb'f("x", "pid", "y")'), verdicts={Verdict.DAMAGED_TEXT}
    ),
    "pytorch#113001: a name that is JSON": Seed(
        content=with_raw_name(rb'{"k": "all_reduce", "s": [8, 256], "ts": 3}'), verdicts={Verdict.DAMAGED_TEXT}
    ),
    "a name that ends in a quote and brace": Seed(content=with_raw_name(rb'{"a": "b"}'), verdicts={Verdict.DAMAGED_TEXT}),
    "kineto#754: Windows path in a name": Seed(content=with_raw_name(rb"C:\Users\x"), verdicts={Verdict.DAMAGED_TEXT}),
    "kineto#754: Windows path in the metadata": Seed(
        content=text(some_events(COUNT), tail=', "traceName": "C:\\Windows\\t.json"').encode(),
        verdicts={Verdict.DAMAGED_TEXT},
    ),
    "perfetto#598: control character": Seed(content=with_raw_name(b"a\x01b"), verdicts=set()),
    "raw newline in a name": Seed(content=with_raw_name(b"a\nb"), verdicts=set()),
    "HTA#324: bytes that are no UTF-8": Seed(content=with_raw_name(b"a\x9fb\xff"), verdicts={Verdict.DAMAGED_TEXT}),
    "lone surrogate": Seed(content=with_raw_name(rb"\ud800"), verdicts=set()),
    "a page of blanks before the text": Seed(content=b" \n" * 4000 + WHOLE.encode(), verdicts=set()),
    "a page of blanks before a list": Seed(
        content=b"\n" * 9000 + json.dumps(some_events(COUNT)).encode(), verdicts=set()
    ),
    "bytes that are no UTF-8 among the types": Seed(
        content=WHOLE.replace('"args": {', '"args": {"Input type": ["@"], ', 1).encode().replace(b"@", b"\x9f"),
        verdicts=set(),
    ),
    "byte order mark": Seed(content=b"\xef\xbb\xbf" + WHOLE.encode(), verdicts=set()),
    "kineto#105: Infinity among the arguments": Seed(
        content=WHOLE.replace('"device": 0', '"device": 0, "memory bandwidth (GB/s)": Infinity', 1).encode(),
        verdicts=set(),
    ),
    "pytorch#33961: inf and nan as C prints them": Seed(
        content=WHOLE.replace('"device": 0', '"device": 0, "a": inf, "b": -nan', 1).encode(),
        verdicts={Verdict.DAMAGED_TEXT},
    ),
    "NaN as a time": Seed(
        content=WHOLE.replace('"ts": 1005.125', '"ts": NaN').encode(), verdicts={Verdict.DAMAGED_EVENTS}, rows=COUNT - 1
    ),
    "a number beyond every float": Seed(
        content=WHOLE.replace('"correlation": 0}', '"correlation": 0}').replace('"dur": 2.25', '"dur": 1e999', 1).encode(),
        verdicts={Verdict.CORRUPT_DURATIONS},
    ),
    "an integer of five thousand digits": Seed(
        content=WHOLE.replace('"dur": 2.25', '"dur": 2.25, "id": ' + "9" * 5000, 1).encode(), verdicts=set()
    ),
    "nested a hundred thousand deep": Seed(
        content=WHOLE.replace('"device": 0', '"device": 0, "x": ' + "[" * 100_000 + "]" * 100_000, 1).encode(),
        verdicts={Verdict.DAMAGED_EVENTS},
        rows=COUNT - 1,
    ),
    "an event torn in the middle": Seed(
        content=WHOLE.replace('"name": "k1", "pid": 0, ', '"na', 1).encode(), verdicts={Verdict.DAMAGED_EVENTS}, rows=COUNT - 1
    ),
    "an event torn in the middle, compact": Seed(
        content=COMPACT.replace('"name":"k1","pid":0,', '"na', 1).encode(), verdicts={Verdict.DAMAGED_EVENTS}, rows=COUNT - 1
    ),
    "values between the events": Seed(
        content=WHOLE.replace('\n  {\n    "ph": "X", "cat": "kernel"', '\n  null, 3, "x", {\n    "ph": "X", "cat": "kernel"', 1).encode(),
        verdicts={Verdict.DAMAGED_EVENTS},
        rows=COUNT - 1,
    ),
    "fields of the wrong type": Seed(
        content=WHOLE.replace('"name": "k1"', '"name": ["k1"], "cat": {}', 1).encode(), verdicts=set()
    ),
    "viztracer#208: no metadata at all": Seed(content=text(some_events(COUNT), {}).encode(), verdicts=set()),
}  # fmt: skip


@pytest.mark.parametrize("seed", SALVAGED.values(), ids=SALVAGED.keys())
def test_what_is_whole_is_kept_and_the_damage_named(tmp_path: Path, seed: Seed) -> None:
    table = read_text(tmp_path, seed.content)
    assert {problem.verdict for problem in table.problems} == seed.verdicts
    assert all(str(tmp_path) in problem.sentence for problem in table.problems)
    if seed.rows is None:
        assert 0.3 * COUNT < len(table) < COUNT
    else:
        assert len(table) == seed.rows
    known = {"cudaLaunchKernel", "k0", "k1", "k2"}
    assert len(set(table.names) - known) <= 1


@pytest.mark.parametrize("keep", [20, 500, 5000, 9000, -1])
def test_both_decompressors_salvage_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    content = gzipped(WHOLE)[:keep]

    def outcome() -> tuple[int, set[Verdict]]:
        try:
            table = read_text(tmp_path, content)
        except TraceFormatError as error:
            return 0, {error.verdict}
        return len(table), {problem.verdict for problem in table.problems}

    first = outcome()
    monkeypatch.setattr(bytestream, "_inflate", zlib)
    monkeypatch.setattr(bytestream, "_DECOMPRESSION_ERRORS", (zlib.error, OSError, EOFError))
    second = outcome()
    assert first[1] == second[1]
    assert abs(first[0] - second[0]) <= 100  # they hold back different amounts at the cut


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (rb'f("x")', 'f("x")'),
        (rb'{"k": "a", "pid": 3}', '{"k": "a", "pid": 3}'),
        (rb"C:\Users", r"C:\Users"),
        (b"a\x01b", "a\x01b"),
        (b"a\x9fb", "a\ufffdb"),
        ("größe".encode(), "größe"),
        (rb"\"quoted\"", '"quoted"'),
    ],
)
def test_names_survive(tmp_path: Path, written: bytes, read: str) -> None:
    assert read in read_text(tmp_path, with_raw_name(written)).names


@pytest.mark.parametrize("written", ["größe \ufffd".encode(), b'\xef\xbf\xbd "quoted"'])
def test_a_replacement_character_of_the_file_is_no_replaced_byte(tmp_path: Path, written: bytes) -> None:
    table = read_text(tmp_path, with_raw_name(written))
    assert not [problem for problem in table.problems if "no UTF-8" in problem.sentence]


def test_replaced_bytes_are_counted(tmp_path: Path) -> None:
    for content in (WHOLE, COMPACT):
        table = read_text(tmp_path, content.encode().replace(b'"k1"', b'"k\x9f"'))
        (problem,) = table.problems
        assert (problem.verdict, problem.count) == (Verdict.DAMAGED_TEXT, WHOLE.count('"k1"'))
        assert len(table) == COUNT


def test_events_of_a_second_list_are_named(tmp_path: Path) -> None:
    tail = ', "traceEvents": [' + ", ".join(json.dumps(event) for event in some_events(4)) + "]"
    (problem,) = read_text(tmp_path, text(some_events(COUNT), tail=tail)).problems
    assert (problem.verdict, problem.count) == (Verdict.DAMAGED_EVENTS, 4)
    assert "second traceEvents list" in problem.sentence


VARIED = text([complete(f"op {zlib.crc32(b'%d' % index):x}", 1.5 + index) for index in range(40_000)])
VARIED_GZIP = gzipped(VARIED)


@settings(max_examples=40, deadline=None)
@example(flips=[284])  # in the metadata
@example(flips=[3113])  # in the first events
@example(flips=[10773])  # most of the first stretch is nonsense
@example(flips=[393467])  # the end is no longer found
@given(flips=st.lists(st.integers(100, len(VARIED_GZIP) - 9), min_size=1, max_size=5))
def test_flipped_bytes_of_a_compressed_trace_are_damage_and_never_a_second_writer(
    tmp_path_factory: pytest.TempPathFactory, flips: list[int]
) -> None:
    data = bytearray(VARIED_GZIP)
    for at in flips:
        data[at % len(data)] ^= 0xFF
    try:
        table = read_text(tmp_path_factory.mktemp("flip"), bytes(data))
    except TraceFormatError as error:
        said = str(error)
    else:
        said = " ".join(item.sentence for item in table.problems if item.verdict is Verdict.TRUNCATED)
    assert "its compressed data" in said or bytes(data) == VARIED_GZIP


def test_a_list_that_seems_to_end_in_damaged_data_is_read_up_to_there(tmp_path: Path) -> None:
    """What damaged data inflates to may close the list of events, with events after it."""
    closed = VARIED.replace("},\n  {", "}],\n  {", 20_000).replace("}],\n  {", "},\n  {", 19_999)
    data = bytearray(gzip.compress(closed.encode(), 1))
    data[-6] ^= 0xFF
    table = read_text(tmp_path, bytes(data))
    assert 0 < len(table) < 40_000
    assert [problem.verdict for problem in table.problems] == [Verdict.TRUNCATED]


REFUSED: dict[str, tuple[bytes, Verdict]] = {
    "pytorch#167707: no bytes": (b"", Verdict.EMPTY),
    "pytorch#167601: compressed nothing": (gzip.compress(b""), Verdict.EMPTY),
    "compressed header only": (gzip.compress(WHOLE.encode())[:12], Verdict.EMPTY),
    "spaces": (b" \n" * 5000, Verdict.EMPTY),
    "zeros": (bytes(100_000), Verdict.EMPTY),
    "text": (b"rank 0 finished\n" * 100, Verdict.NOT_A_TRACE),
    "another JSON": (b'{"a": 1}', Verdict.NOT_A_TRACE),
    "a list of other things": (b'[{"a": 1}, {"a": 2}]', Verdict.NOT_A_TRACE),
    "traceEvents is no list": (b'{"traceEvents": {"a": 1}}', Verdict.NOT_A_TRACE),
    "UTF-16": (WHOLE.encode("utf-16"), Verdict.NOT_A_TRACE),
    "cut before the first event": (WHOLE[: WHOLE.index("traceEvents")].encode(), Verdict.TRUNCATED),
    "intercept-layer#147: two writers in turns": (two_writers(), Verdict.INTERLEAVED),
    "two writers, large blocks": (two_writers(1 << 16), Verdict.INTERLEAVED),
    "two traces joined": (WHOLE.encode() * 2, Verdict.INTERLEAVED),
    "two compressed traces joined": (gzipped(WHOLE) * 2, Verdict.INTERLEAVED),
    "the end of a longer trace after a shorter one": (
        WHOLE.encode() + WHOLE[5000:].encode(),
        Verdict.INTERLEAVED,
    ),
    "nothing but damage": (
        b'{"traceEvents": [' + b",\n".join(b'{"ph": "X", "na}' for _ in range(5000)) + b"]}",
        Verdict.UNREADABLE,
    ),
}


@pytest.mark.parametrize(("content", "verdict"), REFUSED.values(), ids=REFUSED.keys())
def test_what_gives_no_table_is_refused_with_path_and_reason(
    tmp_path: Path, content: bytes, verdict: Verdict
) -> None:
    with pytest.raises(TraceFormatError) as caught:
        read_text(tmp_path, content)
    assert caught.value.verdict is verdict
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_second_writer_is_named_by_its_byte(tmp_path: Path) -> None:
    content = two_writers()
    with pytest.raises(TraceFormatError) as caught:
        read_text(tmp_path, content)
    assert caught.value.offset is not None
    second = content.index(b'"schemaVersion"', 100)
    assert abs(caught.value.offset - second) < 4096


@pytest.mark.parametrize(
    "events", [[], [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "x"}}]]
)
def test_traces_without_rows_are_tables_without_rows(tmp_path: Path, events: list[Event]) -> None:
    table = read_text(tmp_path, text(events))
    assert len(table) == 0
    assert table.meta.events_total == len(events)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(TraceFormatError) as caught:
            read_one(path)
        assert caught.value.verdict is Verdict.UNREADABLE


def test_names_that_hold_separators_do_not_split_events(tmp_path: Path) -> None:
    events = [complete(f'a}}, {{"ph": "X"}}, {index}', 1.5 + index) for index in range(20_000)]
    for style in ("kineto", "compact", "indented"):
        table = read_text(tmp_path, text(events, style=style))
        assert len(table) == 20_000
        assert not table.problems


def test_nested_objects_at_a_cut_do_not_split_events(tmp_path: Path) -> None:
    nested = [{"a": 1}, {"b": [{"c": 2}, {"d": 3}]}] * 40
    events = [
        complete(f"n{index % 5}", 1.5 + index, args={"x": nested, "External id": index})
        for index in range(3000)
    ]
    table = read_text(tmp_path, text(events, style="compact"))
    assert table.external_id.tolist() == list(range(3000))
    assert not table.problems


class TestLimits:
    def test_gzip_bombs_are_refused(self, tmp_path: Path) -> None:
        limits = Limits(ratio_from_bytes=1 << 20)
        bomb = gzip.compress(b'{"traceEvents": [' + b" " * (32 << 20))
        with pytest.raises(TraceFormatError) as caught:
            read_one_with(tmp_path, bomb, limits)
        assert caught.value.verdict is Verdict.TOO_LARGE
        assert "200 times" in str(caught.value)

    def test_events_that_repeat_too_well_are_a_bomb_too(self, tmp_path: Path) -> None:
        event = json.dumps(complete("x", 1.5))
        bomb = gzip.compress(("[" + ",\n".join([event] * 200_000) + "]").encode())
        with pytest.raises(TraceFormatError) as caught:
            read_one_with(tmp_path, bomb, Limits(ratio_from_bytes=1 << 20, max_ratio=50))
        assert caught.value.verdict is Verdict.TOO_LARGE

    def test_the_ratio_can_be_allowed(self, tmp_path: Path) -> None:
        content = gzip.compress(WHOLE.replace('"name"', " " * 20_000 + '"name"', 100).encode())
        tight = Limits(ratio_from_bytes=1 << 10, max_ratio=20)
        with pytest.raises(TraceFormatError):
            read_one_with(tmp_path, content, tight)
        assert (
            len(read_one_with(tmp_path, content, Limits(ratio_from_bytes=1 << 10, max_ratio=1000))) == COUNT
        )

    def test_a_file_that_is_vouched_for_is_bounded_by_its_size_alone(self, tmp_path: Path) -> None:
        bomb = gzip.compress((WHOLE.rstrip()[:-3] + " " * (20 << 20) + "]}").encode(), 1)
        with pytest.raises(TraceFormatError, match="--max-gb"):
            read_one_with(tmp_path, bomb, Limits(ratio_from_bytes=1 << 20, max_ratio=50))
        assert len(read_one_with(tmp_path, bomb, Limits.of_trusted(1 << 30))) == COUNT
        with pytest.raises(TraceFormatError, match="holds more than 1,048,576 bytes"):
            read_one_with(tmp_path, bomb, Limits.of_trusted(1 << 20))

    def test_text_without_a_boundary_is_refused(self, tmp_path: Path) -> None:
        content = '{"traceEvents": [{"ph": "X", "name": "' + "a" * (8 << 20)
        with pytest.raises(TraceFormatError) as caught:
            read_one_with(tmp_path, content.encode(), Limits(max_gap_bytes=4 << 20))
        assert caught.value.verdict is Verdict.TOO_LARGE

    def test_endless_text_after_the_events(self, tmp_path: Path) -> None:
        limits = Limits(max_gap_bytes=1 << 20)
        content = WHOLE.rstrip()[:-1] + ', "x": "' + "a" * (4 << 20) + '"}'
        with pytest.raises(TraceFormatError) as caught:
            read_one_with(tmp_path, content.encode(), limits)
        assert caught.value.verdict is Verdict.TOO_LARGE
        many = WHOLE.rstrip()[:-1] + ', "x": [' + ", ".join(['{"a": 1}'] * 400_000) + "]}"
        table = read_one_with(tmp_path, many.encode(), limits)
        assert len(table) == COUNT
        assert Verdict.DAMAGED_TEXT in {problem.verdict for problem in table.problems}

    def test_absolute_size(self, tmp_path: Path) -> None:
        with pytest.raises(TraceFormatError) as caught:
            read_one_with(tmp_path, WHOLE.encode(), Limits(max_text_bytes=10_000))
        assert caught.value.verdict is Verdict.TOO_LARGE


def read_one_with(folder: Path, content: bytes, limits: Limits) -> EventTable:
    path = folder / "t.json"
    path.write_bytes(content)
    return read_one(path, limits)
