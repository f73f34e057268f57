"""One call opens the same range for NVTX (domain `mtpprof`) and for the torch profiler.

torch's profiler does not record NVTX and NVTX tools do not see `record_function`, so every range goes to both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

NVTX_DOMAIN = "mtpprof"


@cache
def _domain() -> Any:
    import nvtx

    return nvtx.get_domain(NVTX_DOMAIN)


@contextmanager
def annotate(name: str) -> Iterator[None]:
    """Range `name` around a block; the name must hold no double quote (Kineto writes it unescaped)."""
    from torch.profiler import record_function

    domain = _domain()
    domain.push_range(domain.get_event_attributes(message=name))
    try:
        with record_function(name):
            yield
    finally:
        domain.pop_range()
