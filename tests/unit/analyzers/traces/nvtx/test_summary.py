from __future__ import annotations

from mtpprof import ranges
from mtpprof.analyzers.traces.nvtx.summary import group_name, summarize
from mtpprof.nvtxformat import DefinitionKind
from tests.unit.analyzers.traces.nvtx.written import Written, definition, mark, pop, push, text_field


def test_sums_over_processes_by_domain_and_name() -> None:
    domain = definition(DefinitionKind.DOMAIN, 1, 1, text_field("other"))
    first = Written(
        definitions=[domain],
        events=[push(10, "a"), pop(20), push(30, "a"), pop(60), push(70, "a", domain=1), pop(75, domain=1)],
    ).capture()
    second = Written(events=[push(5, "a"), pop(6), push(10, "b"), mark(20, "a")]).capture()
    rows = [
        (s.domain, s.name, s.is_mark, s.count, s.unclosed, s.total_ns, s.mean_ns, s.min_ns, s.max_ns)
        for s in summarize([first, second])
    ]
    assert rows == [
        ("", "a", False, 3, 0, 41, 41 / 3, 1, 30),
        ("other", "a", False, 1, 0, 5, 5.0, 5, 5),
        ("", "a", True, 1, 0, 0, None, None, None),
        ("", "b", False, 1, 1, 0, None, None, None),
    ]


def test_calls_of_one_site_are_one_row() -> None:
    names = [
        ranges.CollectiveRange(
            kind="all_reduce",
            site="layers.3.moe.final",
            phase="target",
            shape=(16, 256),
            dtype="bf16",
            payload_bytes=8192,
            group="tp",
            group_size=4,
            implementation="shm_oneshot",
            sequence=sequence,
            fused="residual_rmsnorm",
        ).name()
        for sequence in (5, 6)
    ]
    events = [event for i, name in enumerate(names) for event in (push(10 * i + 1, name), pop(10 * i + 4))]
    (summary,) = summarize([Written(events=events).capture()])
    assert summary.count == 2
    assert "seq=" not in summary.name
    assert "fused=residual_rmsnorm" in summary.name
    assert group_name(ranges.step_name(7)) == "mtpprof::step"
    assert group_name("theirs seq=5") == "theirs seq=5"


def test_nothing_gives_nothing() -> None:
    assert summarize([]) == summarize([Written().capture()]) == []
