"""Start-up and bandwidth of collectives out of a run's own traces, in the form of a hardware profile.

Per kind and implementation, the median transfer time (from the last rank's arrival to the end: no waiting) of every size is fitted by
`α + sent/β`, sizes weighted by their calls. What a run cannot tell is left open: one size alone gives the time of that size and
of no other, and nothing gives the cost of other kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import numpy as np

from mtpprof.analyzers.calls.table import Calls, wire_bytes_of
from mtpprof.analyzers.traces.table import MISSING
from mtpprof.errors import InputError
from mtpprof.models.hardware import CollectiveCost, HardwareProfile
from mtpprof.models.traffic import Algorithm, Kind

Point = tuple[int, float, int]
"""Bytes sent by a rank, median transfer in nanoseconds, calls."""


def fitted_profile(name: str, sides: Iterable[Calls]) -> HardwareProfile:
    """The profile of the machine that these calls ran on.

    Raises:
        InputError: no call whose transfer time and size are known.
    """
    samples: dict[tuple[str, str, str], dict[int, list[int]]] = {}
    for calls in sides:
        wire = wire_bytes_of(calls)
        usable = np.flatnonzero(
            (calls.transfer_ns != MISSING) & (wire != MISSING) & ~calls.transient & (calls.fused == 0)
        )
        for index in usable.tolist():
            key = (
                calls.text("kind", index),
                calls.text("algorithm", index),
                calls.text("implementation", index),
            )
            samples.setdefault(key, {}).setdefault(int(wire[index]), []).append(int(calls.transfer_ns[index]))
    if not samples:
        raise InputError(
            f"{name}: no collective in its traces has a known transfer time and size, so no cost model can be fitted; "
            f"use --hardware."
        )
    costs = [
        _cost(key, [(sent, float(median(times)), len(times)) for sent, times in sorted(sizes.items())])
        for key, sizes in samples.items()
    ]
    return HardwareProfile(name=name, title=f"fitted to the traces of {name}", collective=costs)


def _cost(key: tuple[str, str, str], points: list[Point]) -> CollectiveCost:
    kind, algorithm, implementation = key
    alpha_ns, ns_per_byte = fit_line(points)
    calls, sizes = sum(count for _, _, count in points), len(points)
    return CollectiveCost(
        kind=Kind(kind),
        algorithm=Algorithm(algorithm),
        by=implementation,
        link="scale-up",
        alpha_us=alpha_ns / 1000,
        beta_gb_s=1 / ns_per_byte if ns_per_byte else None,
        only_bytes=points[0][0] if sizes == 1 else None,
        source=f"{calls} calls of {sizes} sizes in the run's own traces",
    )


def fit_line(points: list[Point]) -> tuple[float, float]:
    """Weighted least squares of `time = alpha + slope * sent`, with neither below zero."""
    sent, time, weight = (np.array(column, float) for column in zip(*points, strict=True))
    total = weight.sum()
    mean_sent, mean_time = (sent * weight).sum() / total, (time * weight).sum() / total
    spread = (weight * (sent - mean_sent) ** 2).sum()
    slope = (weight * (sent - mean_sent) * (time - mean_time)).sum() / spread if spread else 0.0
    slope = max(0.0, float(slope))
    alpha = float(mean_time - slope * mean_sent)
    if alpha < 0:
        # Through the origin: all of the time is bytes.
        return 0.0, float((weight * sent * time).sum() / (weight * sent**2).sum())
    return alpha, slope
