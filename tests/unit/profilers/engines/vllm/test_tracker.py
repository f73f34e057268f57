"""Steps, phases and collectives of a worker, on a clock of our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mtpprof import ranges
from mtpprof.models.traffic import Kind
from mtpprof.profilers.engines.vllm.handshake import Handshake
from mtpprof.profilers.engines.vllm.sites import FUSED_HELPER, Place, SiteMap
from mtpprof.profilers.engines.vllm.tracker import Call, Tracker

LINEAR = Place(owner="RowParallelLinear", prefix="model.layers.0.self_attn.o_proj")


class Ranges:
    """Records what is opened and closed, and that it nests."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._open: list[str] = []

    @contextmanager
    def annotate(self, name: str) -> Iterator[None]:
        self._open.append(name)
        self.log.append(f"+{name}")
        yield
        assert self._open.pop() == name
        self.log.append(f"-{name}")


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 10
        return self.now


def make() -> tuple[Tracker, Ranges]:
    opened = Ranges()
    tracker = Tracker(opened.annotate, Clock())
    tracker.sites = SiteMap(Handshake(family="deepseek", blocks="ADAE", draft_blocks="AE"))
    return tracker, opened


def call(tracker: Tracker, place: Place = LINEAR, kind: Kind = Kind.ALL_REDUCE) -> None:
    told = Call(
        kind=kind,
        shape=(4, 8),
        dtype="bf16",
        payload_bytes=64,
        group="tp",
        group_size=2,
        implementation="x",
        place=place,
    )
    with tracker.collective(told):
        pass


def decode_step(tracker: Tracker, drafts: int) -> None:
    tracker.step(prefill=False)
    tracker.logits_done()
    tracker.drafts_begin()
    for _ in range(drafts):
        tracker.draft_pass()
        tracker.draft_head_done()
    tracker.drafts_end()


def test_a_step_lasts_from_its_start_to_the_next_ones() -> None:
    tracker, opened = make()
    tracker.begin(3, record=False, skip=0)
    for _ in range(4):
        tracker.step(prefill=False)
    assert tracker.end() == [10, 10, 10]
    assert opened.log == []


def test_steps_that_are_skipped_have_neither_time_nor_range() -> None:
    tracker, opened = make()
    tracker.begin(2, record=True, skip=1)
    for _ in range(4):
        tracker.step(prefill=False)
    assert len(tracker.end()) == 2
    steps = [name for name in opened.log if name.startswith(f"+{ranges.PREFIX}step")]
    assert steps == [f"+{ranges.step_name(0)}", f"+{ranges.step_name(1)}"]


def test_a_window_that_was_not_closed_by_a_step_is_a_step_short() -> None:
    tracker, _ = make()
    tracker.begin(2, record=False, skip=0)
    tracker.step(prefill=False)
    tracker.step(prefill=False)
    assert len(tracker.end()) == 1


def test_phases_follow_one_another_within_a_step() -> None:
    tracker, opened = make()
    tracker.begin(1, record=True, skip=0)
    decode_step(tracker, 2)
    tracker.end()
    phases = [
        name[len("+mtpprof::phase name=") :] for name in opened.log if name.startswith("+mtpprof::phase")
    ]
    assert phases == ["target", "sample", "draft[0]", "draft[1]", "sample"]
    assert opened.log[0] == "+mtpprof::step index=0"
    assert opened.log[-1] == "-mtpprof::step index=0"


def test_the_draft_pass_that_opens_a_proposal_is_number_zero() -> None:
    tracker, _ = make()
    tracker.begin(1, record=True, skip=0)
    tracker.step(prefill=False)
    tracker.drafts_begin()
    seen = []
    for _ in range(3):
        tracker.draft_pass()
        seen.append(tracker.phase)
        tracker.draft_head_done()
    tracker.drafts_end()
    assert seen == ["draft[0]", "draft[1]", "draft[2]"]
    assert not tracker.drafting


def test_a_prefill_is_named_so() -> None:
    tracker, _ = make()
    tracker.step(prefill=True)
    assert tracker.phase == "prefill"


def test_logits_of_the_draft_module_do_not_end_a_pass() -> None:
    tracker, _ = make()
    tracker.step(prefill=False)
    tracker.drafts_begin()
    tracker.draft_pass()
    tracker.logits_done()
    assert tracker.phase == "draft[0]"


def test_a_collective_says_where_it_is_and_counts_on() -> None:
    tracker, opened = make()
    tracker.begin(1, record=True, skip=0)
    tracker.step(prefill=False)
    call(tracker)
    call(tracker)
    items = [ranges.parse_collective(name[1:]) for name in opened.log if "all_reduce" in name]
    first, second = items[0], items[2]
    assert first is not None
    assert second is not None
    assert (first.site, first.phase, first.shape) == ("layers.0.mla.o_proj", "target", (4, 8))
    assert (first.payload_bytes, first.group, first.group_size) == (64, "tp", 2)
    assert (first.sequence, second.sequence) == (0, 1)


def test_sequence_numbers_begin_anew_with_each_window() -> None:
    tracker, opened = make()
    for _ in range(2):
        tracker.begin(1, record=True, skip=0)
        tracker.step(prefill=False)
        call(tracker)
        tracker.end()
    numbers = [item.sequence for name in opened.log if (item := ranges.parse_collective(name[1:]))]
    assert numbers == [0, 0, 0, 0]


def test_the_fused_helper_is_placed_by_the_blocks_before_it() -> None:
    tracker, opened = make()
    tracker.begin(1, record=True, skip=0)
    tracker.step(prefill=False)
    tracker.drafts_begin()
    tracker.draft_pass()
    call(tracker, Place(owner="VocabParallelEmbedding"))
    call(tracker, Place(owner="RowParallelLinear", prefix="model.layers.2.self_attn.o_proj"))
    call(tracker, Place(function=FUSED_HELPER))
    sites = [
        item.site for name in opened.log if name[0] == "+" and (item := ranges.parse_collective(name[1:]))
    ]
    assert sites == ["mtp.embed", "mtp.layers.0.mla.o_proj", "mtp.layers.0.moe.final"]


def test_where_no_forward_pass_is_seen_the_first_call_after_a_head_opens_the_next_draft() -> None:
    tracker, opened = make()
    tracker.begin(1, record=True, skip=0)
    tracker.step(prefill=False)
    tracker.drafts_begin()
    for _ in range(2):
        call(tracker)
        tracker.draft_head_done()
    tracker.drafts_end()
    assert phases_told(opened) == ["draft[0]", "draft[1]"]


def phases_told(opened: Ranges) -> list[str]:
    return [
        item.phase for name in opened.log if name[0] == "+" and (item := ranges.parse_collective(name[1:]))
    ]


def test_what_is_captured_is_told_at_every_replay_in_its_order() -> None:
    tracker, opened = make()
    tracker.capture_begins()
    call(tracker, Place(owner="VocabParallelEmbedding"))
    call(tracker)
    graph = tracker.capture_ends()
    assert opened.log == []
    tracker.begin(1, record=True, skip=0)
    tracker.step(prefill=False)
    for _ in range(2):
        with tracker.replay(graph):
            opened.log.append("launch")
    log = [name.partition(" ")[0] + name[-6:] if "all_reduce" in name else name for name in opened.log]
    start = log.index("+mtpprof::graph calls=2")
    inside = [name for name in log[start : log.index("-mtpprof::graph calls=2")] if name[0] == "+"]
    assert len(inside) == 3
    assert log[log.index("-mtpprof::graph calls=2") - 1] == "launch"
    items = [item for name in opened.log if name[0] == "+" and (item := ranges.parse_collective(name[1:]))]
    assert [item.site for item in items] == ["embed", "layers.0.mla.o_proj"] * 2
    assert [item.sequence for item in items] == [0, 1, 2, 3]
    assert {item.phase for item in items} == {"target"}


def test_a_graph_of_the_whole_draft_loop_is_several_passes() -> None:
    tracker, opened = make()
    tracker.drafts_begin()
    tracker.capture_begins()
    for _ in range(2):
        call(tracker)
        tracker.draft_head_done()
    graph = tracker.capture_ends()
    tracker.drafts_end()
    assert graph.heads == 2
    tracker.begin(1, record=True, skip=0)
    tracker.step(prefill=False)
    tracker.drafts_begin()
    call(tracker)
    tracker.draft_head_done()
    with tracker.replay(graph):
        pass
    call(tracker)
    assert phases_told(opened) == ["draft[0]", "draft[1]", "draft[2]", "draft[3]"]


def test_a_graph_of_one_pass_belongs_to_whichever_runs() -> None:
    tracker, opened = make()
    tracker.drafts_begin()
    tracker.capture_begins()
    call(tracker)
    graph = tracker.capture_ends()
    tracker.drafts_end()
    assert graph.heads == 0
    tracker.begin(1, record=True, skip=0)
    tracker.step(prefill=False)
    tracker.drafts_begin()
    for _ in range(3):
        with tracker.replay(graph):
            pass
        tracker.draft_head_done()
    assert phases_told(opened) == ["draft[0]", "draft[1]", "draft[2]"]
    assert graph.calls[0].site == "mtp.layers.0.mla.o_proj"
