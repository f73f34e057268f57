"""Texts of NVTX events as codes: names, domains, categories, each distinct text once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.numeric.arrays import I32, I64
from mtpprof.analyzers.traces.nvtx.chunks import Definitions, RawCapture, stored_payloads
from mtpprof.analyzers.traces.nvtx.payload import Schemas
from mtpprof.analyzers.traces.readers.columns import Interner


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Names, domains and categories of all events, and the schemas under the codes of their domains.

    Domains of one name are one: every library in a process makes its own handle for it.
    """

    name: I32
    names: tuple[str, ...]
    domain: I32
    domains: tuple[str, ...]
    """The default domain, first, is the empty text."""
    category: I32
    categories: tuple[str, ...]
    schemas: Schemas
    unknown: int
    """Domains and strings that events refer to and that no definition names."""


def read_texts(raw: RawCapture, payload_at: I64) -> Texts:
    """The texts of all events.

    Args:
        raw: The capture.
        payload_at: Where each event's extended payloads begin in the blobs; -1: it has none.
    """
    domains = _with_empty()
    numbers, which = np.unique(raw.events["domain"], return_inverse=True)
    known = raw.definitions.domains
    missing = [int(number) for number in numbers if number and int(number) not in known]
    code_of = {0: 0} | {number: domains[text] for number, text in known.items()}
    code_of |= {number: domains[f"domain {number}"] for number in missing}
    domain = _codes([code_of[int(number)] for number in numbers], which)
    schemas = _schemas(raw.definitions, code_of)
    names = _with_empty()
    name, missing_strings = _registered_names(raw, names)
    _set_inline_names(raw, names, name)
    _set_payload_names(raw, names, name, domain, schemas, payload_at)
    categories = _with_empty()
    return Texts(
        name=name,
        names=tuple(names),
        domain=domain,
        domains=tuple(domains),
        category=_categories(raw, domain, code_of, categories),
        categories=tuple(categories),
        schemas=schemas,
        unknown=len(missing) + missing_strings,
    )


def _with_empty() -> Interner[str]:
    """Code 0 is the empty text: none."""
    return Interner({"": 0})


def _codes(of_distinct: list[int], which: NDArray[np.intp]) -> I32:
    return np.array(of_distinct, np.int32)[which]


def _schemas(definitions: Definitions, code_of: dict[int, int]) -> Schemas:
    return Schemas(
        layouts={(code_of.get(d, 0), i): layout for (d, i), layout in definitions.layouts.items()},
        enumerations={(code_of.get(d, 0), i): names for (d, i), names in definitions.enumerations.items()},
        strings=definitions.strings,
    )


def _categories(raw: RawCapture, domain: I32, code_of: dict[int, int], categories: Interner[str]) -> I32:
    """Categories are numbered within a domain; one without a name is called by its number, 0 is none."""
    names = {(code_of.get(d, 0), number): text for (d, number), text in raw.definitions.categories.items()}
    keys = domain.astype(np.int64) << 32 | raw.events["category"].astype(np.int64)
    distinct, which = np.unique(keys, return_inverse=True)
    codes = []
    for key in distinct.tolist():
        number = key & 0xFFFFFFFF
        codes.append(categories[names.get((key >> 32, number), str(number) if number else "")])
    return _codes(codes, which)


def _registered_names(raw: RawCapture, names: Interner[str]) -> tuple[I32, int]:
    """Names by registered string, and how many of those strings are unknown."""
    strings = raw.definitions.strings
    numbers, which = np.unique(raw.events["message"], return_inverse=True)
    missing = sum(1 for number in numbers if number and int(number) not in strings)
    codes = [names[strings.get(int(n), f"string {n}") if n else ""] for n in numbers]
    return _codes(codes, which), missing


def _set_inline_names(raw: RawCapture, names: Interner[str], name: I32) -> None:
    lengths = raw.events["text_bytes"]
    rows = np.flatnonzero((lengths > 0) & (raw.blob_at >= 0))
    seen: dict[bytes, int] = {}
    for row, start, length in zip(
        rows.tolist(), raw.blob_at[rows].tolist(), lengths[rows].tolist(), strict=True
    ):
        text = bytes(raw.blobs[start : start + length])
        code = seen.get(text)
        if code is None:
            code = seen[text] = names[text.decode("utf-8", errors="replace")]
        name[row] = code


def _set_payload_names(
    raw: RawCapture, names: Interner[str], name: I32, domain: I32, schemas: Schemas, payload_at: I64
) -> None:
    """Events of the payload functions have no message but the field that their schema marks as one."""
    for row in np.flatnonzero((name == 0) & (payload_at >= 0)).tolist():
        for payload in stored_payloads(raw.blobs, int(payload_at[row])):
            message = schemas.message(int(domain[row]), payload.schema_id, payload.data)
            if message is not None:
                name[row] = names[message]
