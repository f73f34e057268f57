"""What an NVTX capture of the same process knows beside a trace: how the two fit, and calls whose bytes only NVTX tells.

Data alone, so that the event table can carry it; `nvtxattach` makes it, `nvtxbytes` uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtpprof.models.traffic import Kind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NvtxCalls:
    """Calls of a communication library, in order of start. Times are on the clock of the trace's `ts_ns`."""

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    kind: NDArray[np.int32]
    """Code into `kinds`."""
    kinds: tuple[Kind, ...]
    payload_bytes: NDArray[np.int64]
    """In the sense of nccl-tests; -1: not known."""
    group_size: NDArray[np.int64]
    """-1: not known."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @staticmethod
    def empty() -> NvtxCalls:
        """No calls."""
        none = np.empty(0, np.int64)
        return NvtxCalls(
            start_ns=none,
            end_ns=none,
            kind=np.empty(0, np.int32),
            kinds=(),
            payload_bytes=none,
            group_size=none,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NvtxBeside:
    """The NVTX capture of a trace's process, cut to the trace's window."""

    path: str
    ranges: int
    """Closed ranges within the window, mtpprof's own and all others."""
    joined: int
    """Ranges of mtpprof's own that are in both."""
    only_nvtx: int
    only_trace: int
    shift_ns: tuple[int, int] | None
    """The trace's clock less NVTX's lies between these; None: no range is in both."""
    calls: NvtxCalls
    remarks: tuple[str, ...] = ()
    """What is wrong with the capture, or why there is none, one sentence each."""

    @staticmethod
    def absent(path: str, reason: str) -> NvtxBeside:
        """Of a process whose capture is missing although there should be one."""
        return NvtxBeside(
            path=path,
            ranges=0,
            joined=0,
            only_nvtx=0,
            only_trace=0,
            shift_ns=None,
            calls=NvtxCalls.empty(),
            remarks=(reason,),
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """For people: what was joined, how well the clocks agree, and what is wrong."""
        return (self._fit(), *self.remarks) if self.ranges else self.remarks

    def _fit(self) -> str:
        if self.shift_ns is None:
            return (
                f"{self.ranges:,} NVTX ranges lie in its window, none of them in the trace too; "
                f"how far the clocks are apart is not known."
            )
        text = (
            f"{self.joined:,} ranges are in NVTX and in the trace ({self.only_nvtx:,} in NVTX alone, "
            f"{self.only_trace:,} in the trace alone); the clocks are apart by {_bracket(self.shift_ns)}"
        )
        moved = self.shift_ns[0] > self.shift_ns[1]
        return f"{text}, and moved against each other meanwhile." if moved else f"{text}."


def summary(captures: Sequence[NvtxBeside]) -> tuple[str, ...]:
    """The same for the captures of many traces together; empty where there are none."""
    bounds = [bound for item in captures if item.shift_ns is not None for bound in item.shift_ns]
    remarks = tuple(dict.fromkeys(remark for item in captures for remark in item.remarks))
    if not bounds:
        return remarks
    joined, only_nvtx, only_trace = (
        sum(getattr(item, name) for item in captures) for name in ("joined", "only_nvtx", "only_trace")
    )
    return (
        f"{joined:,} ranges of all ranks and arms are in NVTX and in torch's traces ({only_nvtx:,} in NVTX alone, "
        f"{only_trace:,} in the traces alone); the clocks are apart by {_bracket((min(bounds), max(bounds)))}.",
        *remarks,
    )


def _bracket(shift_ns: tuple[int, int]) -> str:
    low, high = sorted(shift_ns)
    return f"{low / 1000:+.1f} to {high / 1000:+.1f} µs"
