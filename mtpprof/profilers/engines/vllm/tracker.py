"""Steps, phases and collectives of one vLLM worker, as ranges and as step times.

vLLM annotates only `execute_model`, which leaves out sampling and all draft passes. Here a step goes from the start of one
`execute_model` to the start of the next, a phase from one boundary to the next, and a collective is told by whoever carries it out.
While nothing is recorded, a call costs one attribute look-up.

A captured graph calls nothing when it is replayed. So its collectives are noted while it is captured, and told again, in their order,
around every replay: whoever reads the trace then knows which kernel of the replay is which.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise

from mtpprof import ranges
from mtpprof.models.ledger import PREFILL, TARGET, draft_phase
from mtpprof.models.traffic import Kind
from mtpprof.profilers.engines.vllm.sites import Place, SiteMap

SAMPLE = "sample"
NONE = "none"

Annotate = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective as the seam sees it."""

    kind: Kind
    shape: tuple[int, ...]
    """This rank's input."""
    dtype: str
    payload_bytes: int
    group: str
    group_size: int
    implementation: str
    place: Place
    fused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """One collective of a graph."""

    call: Call
    site: str
    draft_pass: int | None
    """Number of the draft pass within the graph; None: not the draft module's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """What was captured in one graph."""

    calls: tuple[Captured, ...]
    heads: int
    """Draft passes that end in it."""


class Tracker:
    """State of one worker. Every method is called on the worker's one thread."""

    def __init__(self, annotate: Annotate, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._annotate = annotate
        self._clock_ns = clock_ns
        self.recording = False
        self.drafting = False
        """Whether the draft module runs, or is captured."""
        self.phase = NONE
        self.sites: SiteMap | None = None
        self._timing = False
        self._steps = 0
        self._index = 0
        self._starts_ns: list[int] = []
        self._pass = 0
        self._pass_over = False
        self._blocks = self._order = 0
        self._captured: list[Captured] | None = None
        self._sequence: Counter[str] = Counter()
        self._step_range = ExitStack()
        self._phase_range = ExitStack()

    @property
    def listening(self) -> bool:
        """Whether collectives are to be told at all."""
        return self.recording or self._captured is not None

    def begin(self, steps: int, *, record: bool, skip: int) -> None:
        """Watch the coming steps.

        Args:
            steps: steps to time, and to give a range each.
            record: emit ranges.
            skip: steps that come before them, which carry the profiler's start-up and get no range.
        """
        self._end_ranges()
        self.recording, self._timing = record, True
        self._steps, self._index = steps, -skip
        self._starts_ns = []
        self._sequence.clear()

    def end(self) -> list[int]:
        """Stop watching. Returns the duration of each step that a following step has closed, ns."""
        self._end_ranges()
        self.recording = self._timing = False
        starts = self._starts_ns
        return [end - start for start, end in pairwise(starts)][: self._steps]

    def step(self, *, prefill: bool) -> None:
        """An engine step begins."""
        if self._timing:
            self._end_ranges()
            if self._index >= 0:
                self._starts_ns.append(self._clock_ns())
            if self.recording and 0 <= self._index < self._steps:
                self._step_range.enter_context(self._annotate(ranges.step_name(self._index)))
            self._index += 1
        self.drafting = False
        self._new_pass(PREFILL if prefill else TARGET)

    def logits_done(self) -> None:
        """The target has given its logits; what follows is sampling."""
        if not self.drafting:
            self._enter(SAMPLE)

    def drafts_begin(self) -> None:
        """The drafter begins to propose, or to run for capture."""
        self.drafting, self._pass, self._pass_over = True, 0, False
        self._new_pass(draft_phase(0))

    def draft_pass(self) -> None:
        """The draft module's forward pass begins."""
        if self.drafting and self._pass_over:
            self._pass, self._pass_over = self._pass + 1, False
            self._new_pass(draft_phase(self._pass))

    def draft_head_done(self) -> None:
        """A draft pass has given its token: what comes next is another pass, if anything."""
        self._pass_over = True

    def drafts_end(self) -> None:
        """All drafts are proposed."""
        self.drafting = False
        self._enter(SAMPLE)

    def capture_begins(self) -> None:
        """What is called from now on goes into a graph."""
        self._captured = []
        self._blocks = self._order = 0
        self._pass, self._pass_over = 0, False

    def capture_ends(self) -> Graph:
        """The collectives of the graph."""
        calls, self._captured = tuple(self._captured or ()), None
        return Graph(calls=calls, heads=self._pass + self._pass_over if self.drafting else 0)

    def collective(self, call: Call) -> AbstractContextManager[object]:
        """Range around one collective."""
        self.draft_pass()
        site = self._site(call)
        if self._captured is not None:
            draft_pass = self._pass if self.drafting else None
            self._captured.append(Captured(call=call, site=site, draft_pass=draft_pass))
        if not self.recording:
            return nullcontext()
        return self._annotate(self._item(call, site, self.phase).name())

    @contextmanager
    def replay(self, graph: Graph) -> Iterator[None]:
        """Around the replay of a graph: its collectives in their order, then the replay itself, in one range."""
        self.draft_pass()
        with self._annotate(ranges.graph_name(len(graph.calls))):
            for item in self._replayed(graph.calls):
                with self._annotate(item.name()):
                    pass
            yield
        if self.drafting and graph.heads:
            self._pass, self._pass_over = self._pass + graph.heads - 1, True

    def _replayed(self, calls: Sequence[Captured]) -> Iterator[ranges.CollectiveRange]:
        for captured in calls:
            phase = self.phase
            if captured.draft_pass is not None and self.drafting:
                phase = draft_phase(self._pass + captured.draft_pass)
            yield self._item(captured.call, captured.site, phase)

    def _site(self, call: Call) -> str:
        site = call.place.text
        if self.sites is not None:
            site = self.sites.site(
                call.place, call.kind, drafting=self.drafting, block=self._blocks, order=self._order
            )
        self._order += 1
        if call.kind is Kind.ALL_REDUCE and ".layers." in f".{site}":
            self._blocks += 1
        return site

    def _item(self, call: Call, site: str, phase: str) -> ranges.CollectiveRange:
        sequence = self._sequence[call.group]
        self._sequence[call.group] += 1
        return ranges.CollectiveRange(
            kind=call.kind,
            site=site,
            phase=phase,
            shape=call.shape,
            dtype=call.dtype,
            payload_bytes=call.payload_bytes,
            group=call.group,
            group_size=call.group_size,
            implementation=call.implementation,
            sequence=sequence,
            fused=call.fused,
        )

    def _new_pass(self, phase: str) -> None:
        self._blocks = self._order = 0
        self._enter(phase)

    def _enter(self, phase: str) -> None:
        if phase == self.phase:
            return
        self.phase = phase
        self._phase_range.close()
        if self.recording:
            self._phase_range.enter_context(self._annotate(ranges.phase_name(phase)))

    def _end_ranges(self) -> None:
        self.phase = NONE
        self._phase_range.close()
        self._step_range.close()
