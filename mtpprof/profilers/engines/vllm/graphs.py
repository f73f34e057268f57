"""CUDA graphs: what was captured in each, told again at every replay.

torch's own graph class is what vLLM's full, piecewise and breakable graphs all end in, so it is the one place to listen at.
"""

from __future__ import annotations

import functools
from typing import Any

from mtpprof.profilers.engines.vllm.seam import WRAPPED
from mtpprof.profilers.engines.vllm.tracker import Graph, Tracker

GRAPH = "_mtpprof_graph"
"""Attribute of a graph that holds its collectives."""


def install(graph_class: Any, tracker: Tracker) -> None:
    """Listen to capture and replay of `torch.cuda.CUDAGraph`; a second call changes nothing."""
    if hasattr(graph_class.replay, WRAPPED):
        return
    begin, end, play = graph_class.capture_begin, graph_class.capture_end, graph_class.replay

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        tracker.capture_begins()
        return begin(self, *args, **kwargs)

    @functools.wraps(end)
    def capture_end(self: Any) -> Any:
        setattr(self, GRAPH, tracker.capture_ends())
        return end(self)

    @functools.wraps(play)
    def replay(self: Any) -> Any:
        graph: Graph | None = getattr(self, GRAPH, None)
        if not tracker.recording or graph is None or not graph.calls:
            return play(self)
        with tracker.replay(graph):
            return play(self)

    setattr(replay, WRAPPED, play)
    graph_class.capture_begin, graph_class.capture_end, graph_class.replay = (
        capture_begin,
        capture_end,
        replay,
    )
