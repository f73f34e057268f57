"""vLLM as an engine. This module imports nothing: vLLM loads it in each of its processes, also in those that mtpprof did not start."""

VARIABLE = "MTPPROF_VLLM"
"""Environment variable that the driver alone sets; `handshake` says what it holds."""
