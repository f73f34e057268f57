"""Element types as producers spell them, brought to the names that `models.traffic` knows."""

from __future__ import annotations

DTYPE_WORDS = {
    "bfloat16": "bf16",
    "half": "fp16",
    "float16": "fp16",
    "float": "fp32",
    "float32": "fp32",
    "double": "fp64",
    "float64": "fp64",
    "int": "int32",
    "int32": "int32",
    "long": "int64",
    "long int": "int64",
    "int64": "int64",
    "char": "int8",
    "int8": "int8",
    "signed char": "int8",
    "byte": "uint8",
    "uint8": "uint8",
    "unsigned char": "uint8",
    "bool": "uint8",
    "float8_e4m3fn": "fp8",
    "float8_e4m3fnuz": "fp8",
    "float8_e5m2": "fp8",
    "float8_e5m2fnuz": "fp8",
}
"""Spellings without a namespace, in lower case: `dtype` of a communication record and `Input type` of an operation."""


def dtype_of_word(word: str) -> str:
    """The dtype behind e.g. `BFloat16`, `c10::Half`, `long int`; empty: not one that has a known size."""
    return DTYPE_WORDS.get(word.rsplit("::", 1)[-1].lower(), "")
