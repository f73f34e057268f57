"""Graphs of the same shape as torch's: told at replay as they were captured."""

from __future__ import annotations

from typing import Any

import torch

from mtpprof import ranges
from mtpprof.profilers.engines.vllm import graphs, seam
from mtpprof.profilers.engines.vllm.handshake import Handshake
from mtpprof.profilers.engines.vllm.sites import SiteMap
from mtpprof.profilers.engines.vllm.tracker import Tracker

from .test_seam import RowParallelLinear, coordinator_class
from .test_tracker import Clock, Ranges


def graph_class() -> Any:
    class CUDAGraph:
        def __init__(self) -> None:
            self.log: list[str] = []

        def capture_begin(self, pool: Any = None) -> None:
            self.log.append(f"begin {pool}")

        def capture_end(self) -> None:
            self.log.append("end")

        def replay(self) -> None:
            self.log.append("replay")

    return CUDAGraph


def test_a_replay_tells_what_was_captured_and_replays_it() -> None:
    opened = Ranges()
    tracker = Tracker(opened.annotate, Clock())
    tracker.sites = SiteMap(Handshake(family="deepseek", blocks="ADAE"))
    kind, group = graph_class(), coordinator_class()
    graphs.install(kind, tracker)
    graphs.install(kind, tracker)
    seam.install(group, tracker)
    mine = kind()
    mine.capture_begin(pool=7)
    RowParallelLinear().forward(group(), torch.ones(2, 8, dtype=torch.bfloat16))
    mine.capture_end()
    mine.replay()
    assert opened.log == []
    tracker.begin(1, record=True, skip=0)
    tracker.step(prefill=False)
    mine.replay()
    told = [name[1:] for name in opened.log if name[0] == "+"]
    assert told[-2] == ranges.graph_name(1)
    item = ranges.parse_collective(told[-1])
    assert item is not None
    assert (item.site, item.shape, item.phase) == ("layers.0.mla.o_proj", (2, 8), "target")
    assert mine.log == ["begin 7", "end", "replay", "replay"]


def test_a_graph_without_collectives_or_captured_before_is_only_replayed() -> None:
    opened = Ranges()
    tracker = Tracker(opened.annotate, Clock())
    kind = graph_class()
    before = kind()
    graphs.install(kind, tracker)
    empty = kind()
    empty.capture_begin()
    empty.capture_end()
    tracker.begin(1, record=True, skip=0)
    for graph in (before, empty):
        graph.replay()
        assert graph.log[-1] == "replay"
    assert not any("graph" in name for name in opened.log)
