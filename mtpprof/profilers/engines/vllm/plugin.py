"""vLLM's entry point into mtpprof (`vllm.general_plugins`), loaded by vLLM in each of its processes.

It does nothing, and imports nothing, unless mtpprof's driver started the process.
"""

from __future__ import annotations

import os

from mtpprof.profilers.engines.vllm import VARIABLE


def register() -> None:
    """Called by vLLM, possibly several times in one process."""
    if VARIABLE not in os.environ:
        return
    from mtpprof.profilers.engines.vllm.handshake import read_handshake

    handshake = read_handshake(os.environ)
    if handshake is not None:
        from mtpprof.profilers.engines.vllm.patching import apply_patches

        apply_patches(handshake)
