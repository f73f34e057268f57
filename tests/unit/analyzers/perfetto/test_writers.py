"""Both writers write what they are given, and nothing of it is read back otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpprof.analyzers.perfetto import lanes
from mtpprof.analyzers.perfetto.model import Argument, Flow, Layout, Slices, Values, joined
from tests.unit.analyzers.perfetto.written import Content, chrome, protobuf, slices_of

spans = st.lists(
    st.tuples(st.integers(0, 10**15), st.integers(0, 10**12), st.sampled_from(["a", "b", "all_reduce"])),
    min_size=1,
    max_size=30,
)
HOSTILE = (
    'quotes "q" \\ back',
    "<script>alert(1)</script> op[b",
    "control \x01 \x1b[31m \x00 end",
    "line\nbreak\ttab",
    "lone \ud800 surrogate",
    "replaced \ufffd bytes",
    "µ ↦ 漢字 🚀",
    "x" * 5000,
)


def filled(layout: Layout, items: list[tuple[int, int, str]]) -> None:
    process = layout.process("rank 0", "clock: fine")
    slices = slices_of(layout, items)
    layout.lanes(process, "thread", slices, lanes.nested(slices.ts_ns, slices.dur_ns))


def expected(items: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    return sorted(items)


def read(content: Content) -> list[tuple[int, int, str]]:
    return sorted((item.ts_ns, item.dur_ns, item.name) for item in content.slices)


@settings(deadline=None)
@given(spans)
def test_protobuf_keeps_every_slice(items: list[tuple[int, int, str]]) -> None:
    assert read(protobuf(lambda layout: filled(layout, items))) == expected(items)


@settings(deadline=None)
@given(spans)
def test_json_keeps_every_slice_to_the_nanosecond(items: list[tuple[int, int, str]]) -> None:
    assert read(chrome(lambda layout: filled(layout, items))[0]) == expected(items)


def test_more_slices_than_a_batch_keep_their_nest() -> None:
    count = 40_000
    index = np.arange(count)
    inner = [(int(ts), 3, f"n{ts % 7}") for ts in (10 * index + 2)]
    outer = [(int(ts), 10, "outer") for ts in 10 * index]
    content = protobuf(lambda layout: filled(layout, outer + inner))
    assert read(content) == expected(outer + inner)
    assert {item.depth for item in content.slices if item.name == "outer"} == {0}
    assert {item.depth for item in content.slices if item.name != "outer"} == {1}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_readable_in_both_formats(text: str) -> None:
    def fill(layout: Layout) -> None:
        process = layout.process(text, text)
        slices = slices_of(layout, [(0, 5, text)], category=text)
        argument = Argument(key="site", kind=Values.TEXT, column=layout.texts.codes([text]))
        track = layout.track(process, text)
        layout.slices(
            track,
            joined(
                [
                    slices,
                    Slices(
                        ts_ns=np.array([7]),
                        dur_ns=np.array([1]),
                        name=layout.texts.codes(["other"]),
                        category=layout.texts.codes(["test"]),
                        arguments=(argument,),
                    ),
                ]
            ),
        )

    native = protobuf(fill).slices
    assert all(c.isprintable() for item in native for c in item.name + item.category + item.process)
    assert native[1].arguments["site"] == native[0].name
    document = chrome(fill)[0].slices
    assert document[0].name == document[1].arguments["site"] == text.encode("utf-8", "replace").decode()


def test_arguments_of_every_kind_are_there_where_they_are_known() -> None:
    def fill(layout: Layout) -> None:
        slices = slices_of(layout, [(0, 1, "x"), (5, 1, "y"), (9, 1, "z")])
        texts = layout.texts
        arguments = (
            Argument(key="bytes", kind=Values.INTEGER, column=np.array([0, -1, 2**62])),
            Argument(key="site", kind=Values.TEXT, column=texts.codes(["moe", "", "head"])),
            Argument(
                key="Input Dims", kind=Values.JSON, column=texts.codes(["[[8, 256], []]", "", "[[8, 2"])
            ),
            Argument(key="saved", kind=Values.NUMBER, column=np.array([-1.5, np.nan, 3.0])),
        )
        full = Slices(
            ts_ns=slices.ts_ns,
            dur_ns=slices.dur_ns,
            name=slices.name,
            category=slices.category,
            arguments=arguments,
        )
        layout.slices(layout.track(layout.process("rank 0"), "t"), full)

    x, y, z = protobuf(fill).slices
    assert x.arguments == {"bytes": 0, "site": "moe", "Input Dims": "[[8, 256], []]", "saved": -1.5}
    assert y.arguments == {}
    assert z.arguments == {"bytes": 2**62, "site": "head", "Input Dims": "[[8, 2", "saved": 3.0}
    x, y, z = chrome(fill)[0].slices
    assert x.arguments == {"bytes": 0, "site": "moe", "Input Dims": [[8, 256], []], "saved": "-1.5"}
    assert y.arguments == {}
    assert z.arguments == {"bytes": 2**62, "site": "head", "Input Dims": "[[8, 2", "saved": "3.0"}


def test_flows_tie_slices_of_one_number() -> None:
    def fill(layout: Layout) -> None:
        process = layout.process("rank 0")
        for start, arrives, leaves in ((0, False, True), (4, True, True), (8, True, False)):
            slices = slices_of(layout, [(start, 2, "all_reduce"), (start + 20, 1, "free")])
            flow = Flow(
                number=np.array([9, 0]), arrives=np.array([arrives, False]), leaves=np.array([leaves, False])
            )
            layout.slices(
                layout.track(process, f"t{start}"),
                Slices(
                    ts_ns=slices.ts_ns,
                    dur_ns=slices.dur_ns,
                    name=slices.name,
                    category=slices.category,
                    flow=flow,
                ),
            )

    assert [item.flows for item in protobuf(fill).slices] == [(9,), (9,), (9,), (), (), ()]
    content, document = chrome(fill)
    assert [item.flows for item in content.slices] == [(9,), (), (9,), (), (9,), ()]
    ends = [
        (event.get("flow_in", False), event.get("flow_out", False))
        for event in document["traceEvents"]
        if "bind_id" in event
    ]
    assert ends == [(False, True), (True, True), (True, False)]


def test_counters() -> None:
    def fill(layout: Layout) -> None:
        process = layout.process("rank 0")
        layout.counter(process, "rate", "B/s", np.array([1, 5]), np.array([2.5, 0.0]))
        layout.counter(process, "nothing", "B/s", np.empty(0, np.int64), np.empty(0))

    assert protobuf(fill).counters == {"rate": [(1, 2.5), (5, 0.0)]}
    assert chrome(fill)[0].counters == {"rate (B/s)": [(1, 2.5), (5, 0.0)]}


def test_numbers_are_unique_and_fit_31_bits() -> None:
    def fill(layout: Layout) -> None:
        for rank in range(3):
            process = layout.process(f"rank {rank}")
            slices = slices_of(layout, [(0, 5, "a"), (3, 9, "b")])
            layout.lanes(process, "same name", slices, lanes.following(slices.ts_ns, slices.dur_ns))

    for content in (protobuf(fill), chrome(fill)[0]):
        assert len(set(content.numbers)) == len(content.numbers) == 9
        assert all(0 < number < 2**31 for number in content.numbers)
        assert {(item.process, item.track) for item in content.slices} == {
            (f"rank {rank}", track) for rank in range(3) for track in ("same name", "same name (lane 2)")
        }


def test_metadata_of_json_is_kept() -> None:
    _, document = chrome(lambda layout: None, baseTimeNanoseconds=17, distributedInfo={"rank": 3})
    assert document["baseTimeNanoseconds"] == 17
    assert document["distributedInfo"] == {"rank": 3}
    assert document["traceEvents"] == []
