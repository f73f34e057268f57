"""What the metadata of a Kineto trace says, taken with suspicion: every key may be absent, or of any type.

Times in a trace are relative to `baseTimeNanoseconds`. Kineto takes the last multiple of a quarter of a year as base; torch
2.3 to 2.4 wrote such times without saying the base. It is then derived from the time stamp that the file's name carries,
and used only where it puts the events into the hour before that time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtpprof.analyzers.traces.table import ProcessGroup, TraceMeta

_QUARTER_NS = 7_889_238 * 10**9
_EPOCH_FROM_US = 10**15
"""Microseconds since the epoch have 16 digits since 2001; times relative to a base do not reach this."""
_NAME_SLACK_NS = 3600 * 10**9
_NAME_STAMP = re.compile(r"\.(\d{13,19})\.(?:pt\.)?trace\.json")
_PRODUCER_KEYS = (
    "schemaVersion",
    "vllm_version",
    "record_shapes",
    "with_stack",
    "cuda_runtime_version",
    "cuda_driver_version",
    "hip_runtime_version",
)
_MAX_RANKS = 1 << 24
_MAX_BASE_NS = 1 << 61
"""The year 2043: later bases are damage, and would leave int64 with the times that are added to them."""


def trace_meta(path: Path, reader: str, values: Mapping[str, Any]) -> TraceMeta:
    """The metadata part of a trace's `TraceMeta`; what depends on the events is filled in by the reader."""
    distributed = _mapping(values.get("distributedInfo"))
    producer = {key: str(values[key]) for key in _PRODUCER_KEYS if key in values}
    if "nccl_version" in distributed:
        producer["nccl_version"] = str(distributed["nccl_version"])
    world_size = _number(distributed.get("world_size"), 1)
    rank = _number(distributed.get("rank"), 0)
    if rank is not None and world_size is not None and rank >= world_size:
        rank = world_size = None
    devices = values.get("deviceProperties")
    return TraceMeta(
        path=str(path),
        reader=reader,
        rank=rank,
        world_size=world_size,
        host=_text(values.get("host_name")),
        trace_id=_text(values.get("trace_id")),
        base_time_ns=_number(values.get("baseTimeNanoseconds"), 0, _MAX_BASE_NS),
        backend=_text(distributed.get("backend")),
        process_groups=_groups(distributed.get("pg_config")),
        devices=tuple(
            str(device["name"])
            for device in (devices if isinstance(devices, list) else ())
            if isinstance(device, dict) and "name" in device
        ),
        producer=producer,
    )


def base_time_ns(path: Path, written: int | None, last_us: float) -> int | None:
    """Base of a file's times in nanoseconds since the epoch; None: they compare with no other file's.

    Args:
        path: The file; its name may carry the time at which it was written.
        written: The base that the file states.
        last_us: The latest time among its events.
    """
    if written is not None:
        return written
    if last_us >= _EPOCH_FROM_US:
        return 0
    stamp = stamp_ns(path)
    if stamp is None:
        return None
    base_ns = stamp // _QUARTER_NS * _QUARTER_NS
    age_ns = stamp - base_ns - round(last_us * 1000)
    return base_ns if 0 <= age_ns < _NAME_SLACK_NS else None


def stamp_ns(path: Path) -> int | None:
    """The time in a trace's file name, as torch's handler and vLLM write it, in ns since the epoch; None: it has none."""
    match = _NAME_STAMP.search(path.name)
    if match is None or len(match[1]) not in (13, 16, 19):
        return None
    digits = match[1].ljust(19, "0")
    return int(digits)


def _groups(value: object) -> tuple[ProcessGroup, ...]:
    groups = []
    for group in value if isinstance(value, list) else ():
        if not isinstance(group, dict):
            continue
        ranks = group.get("ranks")
        groups.append(
            ProcessGroup(
                name=str(group.get("pg_name", "")),
                description=str(group.get("pg_desc", "")),
                size=_number(group.get("pg_size"), 0) or 0,
                ranks=tuple(rank for rank in ranks if isinstance(rank, int))
                if isinstance(ranks, list)
                else (),
            )
        )
    return tuple(groups)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: object, least: int, most: int = _MAX_RANKS) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    return None
