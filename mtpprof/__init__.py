"""mtpprof: what did each communication optimization of tensor-parallel LLM inference save?"""

__version__ = "0.1.0"
