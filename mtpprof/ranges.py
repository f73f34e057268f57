"""Names of the ranges that mtpprof emits around steps, phases and collectives, and their parsing.

The same text goes to NVTX and to the torch profiler. It is `key=value` words without a double quote, because Kineto writes
range names unescaped into its JSON. Emitter (profilers) and reader (analyzers) both take the format from here.

    mtpprof::step index=7
    mtpprof::phase name=draft[2]
    mtpprof::argmax site=mtp.lm_head rows=16 width=129280
    mtpprof::graph calls=12                    (around the replay of a graph; its collectives follow as ranges within)
    mtpprof::all_reduce site=layers.3.moe.final phase=target shape=16x7168 dtype=bf16 bytes=229376 group=tp n=4
        impl=shm_oneshot seq=812 fused=residual_rmsnorm        (one line)
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "mtpprof::"
STEP = "step"
PHASE = "phase"
GRAPH = "graph"
ARGMAX = "argmax"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRange:
    """What one call of a collective says of itself. `shape` is this rank's input tensor."""

    kind: str
    site: str
    phase: str
    shape: tuple[int, ...]
    dtype: str
    payload_bytes: int
    """Payload in the sense of nccl-tests (all-gather: the full output), not this rank's share."""
    group: str
    group_size: int
    implementation: str
    sequence: int
    """Number of this call on its group, equal on all ranks; -1: not known."""
    fused: str = ""
    """What runs in the same kernel after the collective, e.g. `residual_rmsnorm`; empty: nothing."""

    def name(self) -> str:
        """The range name."""
        shape = "x".join(map(str, self.shape))
        text = (
            f"{PREFIX}{self.kind} site={self.site} phase={self.phase} shape={shape} dtype={self.dtype} "
            f"bytes={self.payload_bytes} group={self.group} n={self.group_size} impl={self.implementation} "
            f"seq={self.sequence}"
        )
        return f"{text} fused={self.fused}" if self.fused else text


def step_name(index: int) -> str:
    """Range name of one engine step."""
    return f"{PREFIX}{STEP} index={index}"


def phase_name(phase: str) -> str:
    """Range name of one phase of a step: `prefill`, `target`, `draft[k]` or `sample`."""
    return f"{PREFIX}{PHASE} name={phase}"


def argmax_name(site: str, rows: int, width: int) -> str:
    """Range name of the choice of a token out of `width` logits in each of `rows` rows."""
    return f"{PREFIX}{ARGMAX} site={site} rows={rows} width={width}"


def graph_name(calls: int) -> str:
    """Range name around the replay of a graph that holds so many collectives."""
    return f"{PREFIX}{GRAPH} calls={calls}"


def split(name: str) -> tuple[str, dict[str, str]] | None:
    """Head and `key=value` words of one of our range names; None for any other name."""
    if not name.startswith(PREFIX):
        return None
    head, *words = name[len(PREFIX) :].split(" ")
    return head, dict(word.split("=", 1) for word in words if "=" in word)


def parse_collective(name: str) -> CollectiveRange | None:
    """Read back `CollectiveRange.name()`; None where the name is not one, or is damaged."""
    parts = split(name)
    if parts is None or parts[0] in (STEP, PHASE, GRAPH, ARGMAX):
        return None
    kind, words = parts
    try:
        return CollectiveRange(
            kind=kind,
            site=words["site"],
            phase=words["phase"],
            shape=tuple(int(size) for size in words["shape"].split("x") if size),
            dtype=words["dtype"],
            payload_bytes=int(words["bytes"]),
            group=words["group"],
            group_size=int(words["n"]),
            implementation=words["impl"],
            sequence=int(words["seq"]),
            fused=words.get("fused", ""),
        )
    except (KeyError, ValueError):
        return None
