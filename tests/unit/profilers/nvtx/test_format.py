"""The C source and the reader's constants say the same."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mtpprof import nvtxformat as fmt
from mtpprof.profilers.nvtx.build import SOURCES

TEXT = "\n".join(path.read_text() for path in sorted(SOURCES.glob("*.[ch]")))


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
    [
        ("file_header", fmt.FILE_HEADER),
        ("chunk_header", fmt.CHUNK_HEADER),
        ("event", fmt.EVENT),
    ],
)
def test_structures_agree(structure: str, layout: list[tuple[str, str]]) -> None:
    body = re.search(rf"struct {structure} \{{(.*?)\}};", TEXT, re.DOTALL)
    assert body is not None
    fields = re.findall(r"^\s*(?:_Atomic )?(\w+) (\w+)(?:\[(\w+)\])?;", body.group(1), re.MULTILINE)
    codes = {"uint8_t": "u1", "uint16_t": "<u2", "uint32_t": "<u4", "int32_t": "<i4", "uint64_t": "<u8"}
    kinds = [codes.get(type_, f"S{length}") for type_, _, length in fields]
    assert [
        (name, kind) for (_, name, _), kind in zip(fields, kinds, strict=True) if name != "lost"
    ] == layout
    size = re.search(rf"sizeof\(struct {structure}\) == (\d+)", TEXT)
    assert size is not None
    extra = np.dtype(fmt.LOST).itemsize if structure == "file_header" else 0
    assert int(size.group(1)) == np.dtype(layout).itemsize + extra


def test_the_reasons_of_lost_events_agree() -> None:
    reasons = re.search(r"enum loss \{(.*?)\};", TEXT, re.DOTALL)
    assert reasons is not None
    names = re.findall(r"^\s*LOST_(?:TO|IN|AT)_(\w+),", reasons.group(1), re.MULTILINE)
    assert [name.lower() for name in names] == [name for name, _ in fmt.LOST if name != "reserved"]
    assert f"LOSS_KINDS = {len(fmt.LOST)}\n" in TEXT


def test_the_rest_agrees() -> None:
    assert f'#define FORMAT_MAGIC "{fmt.MAGIC[:-1].decode()}"' in TEXT
    assert f"#define FORMAT_VERSION {fmt.VERSION}\n" in TEXT
    assert f"#define BYTE_ORDER_MARK {fmt.BYTE_ORDER_MARK:#010x}u" in TEXT
    assert f"#define CHUNK_MAGIC {fmt.CHUNK_MAGIC:#x}u" in TEXT
    assert f"#define CHUNK_BYTES_MAX ((size_t){fmt.CHUNK_BYTES_MAX >> 10} << 10)" in TEXT
    for variable in (fmt.DIRECTORY_VARIABLE, fmt.RANK_VARIABLE, fmt.MAX_BYTES_VARIABLE):
        assert f'"{variable}"' in TEXT
