"""The C source and the reader's constants say the same."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mtpprof import nvtxformat as fmt
from mtpprof.profilers.nvtx.build import SOURCE

TEXT = SOURCE.read_text()


def numbers(prefix: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(rf"\b{prefix}_(\w+) = (\d+)", TEXT)}


@pytest.mark.parametrize(
    ("prefix", "members"),
    [
        ("CHUNK", fmt.ChunkKind),
        ("EVENT", fmt.EventKind),
        ("DEFINE", fmt.DefinitionKind),
    ],
)
def test_enumerations_agree(prefix: str, members: type[fmt.EventKind]) -> None:
    assert numbers(prefix) == {member.name: member.value for member in members}


def test_payload_types_agree() -> None:
    assert numbers("PAYLOAD") == {"NONE": fmt.PayloadType.NONE, "EXTENDED": fmt.PayloadType.EXTENDED}


@pytest.mark.parametrize(
    ("structure", "layout"),
    [("file_header", fmt.FILE_HEADER), ("chunk_header", fmt.CHUNK_HEADER), ("event", fmt.EVENT)],
)
def test_structures_agree(structure: str, layout: list[tuple[str, str]]) -> None:
    body = re.search(rf"struct {structure} \{{(.*?)\}};", TEXT, re.DOTALL)
    assert body is not None
    fields = re.findall(r"^\s*(?:_Atomic )?(\w+) (\w+)(?:\[(\d+)\])?;", body.group(1), re.MULTILINE)
    codes = {"uint8_t": "u1", "uint16_t": "<u2", "uint32_t": "<u4", "int32_t": "<i4", "uint64_t": "<u8"}
    assert [(name, codes.get(type_, f"S{length}")) for type_, name, length in fields] == layout
    size = re.search(rf"sizeof\(struct {structure}\) == (\d+)", TEXT)
    assert size is not None
    assert int(size.group(1)) == np.dtype(layout).itemsize


def test_the_rest_agrees() -> None:
    assert f'#define FORMAT_MAGIC "{fmt.MAGIC[:-1].decode()}"' in TEXT
    assert f"#define FORMAT_VERSION {fmt.VERSION}\n" in TEXT
    assert f"#define BYTE_ORDER_MARK {fmt.BYTE_ORDER_MARK:#010x}u" in TEXT
    assert f"#define CHUNK_MAGIC {fmt.CHUNK_MAGIC:#x}u" in TEXT
    assert f"#define CHUNK_BYTES_MAX ((size_t){fmt.CHUNK_BYTES_MAX >> 10} << 10)" in TEXT
    for variable in (fmt.DIRECTORY_VARIABLE, fmt.RANK_VARIABLE, fmt.MAX_BYTES_VARIABLE):
        assert f'"{variable}"' in TEXT
