"""Steps, phases and collectives of one vLLM worker, as ranges and as step times.

vLLM annotates only `execute_model`, which leaves out sampling and all draft passes. Here a step goes from the start of one
`execute_model` to the start of the next, a phase from one boundary to the next, and a collective is told by whoever carries it out.
While nothing is recorded, a call costs one attribute look-up.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import pairwise

from mtpprof import ranges
from mtpprof.models.ledger import PREFILL, TARGET, draft_phase
from mtpprof.models.traffic import DTYPE_BYTES, Kind, payload_bytes
from mtpprof.profilers.engines.vllm.sites import Place, SiteMap

SAMPLE = "sample"
NONE = "none"

Annotate = Callable[[str], AbstractContextManager[object]]


class Tracker:
    """State of one worker. Every method is called on the worker's one thread."""

    def __init__(self, annotate: Annotate, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._annotate = annotate
        self._clock_ns = clock_ns
        self.recording = False
        self.drafting = False
        self.phase = NONE
        self.sites: SiteMap | None = None
        self._timing = False
        self._steps = 0
        self._index = 0
        self._starts_ns: list[int] = []
        self._pass = 0
        self._blocks = 0
        self._sequence: Counter[str] = Counter()
        self._step_range = ExitStack()
        self._phase_range = ExitStack()

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
        """The drafter begins to propose."""
        self.drafting, self._pass = True, 0
        self._enter(draft_phase(0))

    def draft_pass(self) -> None:
        """The draft module's forward pass begins."""
        if self.drafting:
            self._new_pass(draft_phase(self._pass))
            self._pass += 1

    def drafts_end(self) -> None:
        """All drafts are proposed."""
        self.drafting = False
        self._enter(SAMPLE)

    def collective(
        self,
        kind: Kind,
        shape: tuple[int, ...],
        dtype: str,
        *,
        group: str,
        group_size: int,
        implementation: str,
        place: Place,
        fused: str = "",
    ) -> AbstractContextManager[object]:
        """Range around one collective."""
        site = place.text
        if self.sites is not None:
            site = self.sites.site(place, drafting=self.drafting, block=self._blocks)
        if kind is Kind.ALL_REDUCE and ".layers." in f".{site}":
            self._blocks += 1
        sequence = self._sequence[group]
        self._sequence[group] += 1
        if dtype not in DTYPE_BYTES:
            return nullcontext()
        item = ranges.CollectiveRange(
            kind=kind,
            site=site,
            phase=self.phase,
            shape=shape,
            dtype=dtype,
            payload_bytes=payload_bytes(kind, shape, dtype, group_size),
            group=group,
            group_size=group_size,
            implementation=implementation,
            sequence=sequence,
            fused=fused,
        )
        return self._annotate(item.name())

    def _new_pass(self, phase: str) -> None:
        self._blocks = 0
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
