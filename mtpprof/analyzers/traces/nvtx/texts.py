"""Texts of NVTX events as codes: names, domains, categories, each distinct text once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.numeric.arrays import I32, I64
from mtpprof.analyzers.traces.nvtx.chunks import Definitions, EventBatch, stored_payloads
from mtpprof.analyzers.traces.nvtx.payload import Schemas
from mtpprof.analyzers.traces.readers.columns import Interner


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTexts:
    """Codes of the events of one batch."""

    name: I32
    domain: I32
    category: I32


@dataclass(slots=True)
class Texts:
    """Names, domains and categories of a capture, filled batch by batch. Code 0 is the empty text: none, or the default domain.

    Domains of one name are one: every library in a process makes its own handle for it.
    """

    definitions: Definitions
    names: Interner[str] = field(default_factory=lambda: Interner({"": 0}))
    domains: Interner[str] = field(default_factory=lambda: Interner({"": 0}))
    categories: Interner[str] = field(default_factory=lambda: Interner({"": 0}))
    schemas: Schemas = field(init=False)
    _domain_codes: dict[int, int] = field(default_factory=lambda: {0: 0})
    _category_names: dict[tuple[int, int], str] = field(init=False)
    _unknown: set[tuple[str, int]] = field(default_factory=set)
    _inline: dict[bytes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = self.definitions
        self._domain_codes |= {number: self.domains[text] for number, text in known.domains.items()}
        of = self._domain_codes
        self.schemas = Schemas(
            layouts={(of.get(d, 0), i): layout for (d, i), layout in known.layouts.items()},
            enumerations={(of.get(d, 0), i): names for (d, i), names in known.enumerations.items()},
            strings=known.strings,
        )
        self._category_names = {
            (of.get(d, 0), number): text for (d, number), text in known.categories.items()
        }

    @property
    def unknown(self) -> int:
        """Domains and strings that events refer to and that no definition names."""
        return len(self._unknown)

    def of(self, events: EventBatch, payload_at: I64) -> EventTexts:
        """Codes of the events of a batch.

        Args:
            events: The batch.
            payload_at: Where each event's extended payloads begin in the blobs; -1: it has none.
        """
        domain = self._domains(events.records["domain"])
        name = self._registered_names(events.records["message"])
        self._set_inline_names(events, name)
        self._set_payload_names(events, name, domain, payload_at)
        return EventTexts(
            name=name, domain=domain, category=self._categories(events.records["category"], domain)
        )

    def _domains(self, column: NDArray[np.uint16]) -> I32:
        numbers, which = np.unique(column, return_inverse=True)
        codes = []
        for number in numbers.tolist():
            if number not in self._domain_codes:
                self._unknown.add(("domain", number))
                self._domain_codes[number] = self.domains[f"domain {number}"]
            codes.append(self._domain_codes[number])
        return _codes(codes, which)

    def _registered_names(self, column: NDArray[np.uint32]) -> I32:
        strings = self.definitions.strings
        numbers, which = np.unique(column, return_inverse=True)
        self._unknown.update(("string", n) for n in numbers.tolist() if n and n not in strings)
        return _codes(
            [self.names[strings.get(n, f"string {n}") if n else ""] for n in numbers.tolist()], which
        )

    def _categories(self, column: NDArray[np.uint32], domain: I32) -> I32:
        """Categories are numbered within a domain; one without a name is called by its number, 0 is none."""
        keys, which = np.unique(domain.astype(np.int64) << 32 | column.astype(np.int64), return_inverse=True)
        codes = []
        for key in keys.tolist():
            number = key & 0xFFFFFFFF
            text = self._category_names.get((key >> 32, number), str(number) if number else "")
            codes.append(self.categories[text])
        return _codes(codes, which)

    def _set_inline_names(self, events: EventBatch, name: I32) -> None:
        lengths = events.records["text_bytes"]
        rows = np.flatnonzero((lengths > 0) & (events.blob_at >= 0))
        seen = self._inline
        for row, start, length in zip(
            rows.tolist(), events.blob_at[rows].tolist(), lengths[rows].tolist(), strict=True
        ):
            text = bytes(events.blobs[start : start + length])
            code = seen.get(text)
            if code is None:
                code = seen[text] = self.names[text.decode("utf-8", errors="replace")]
            name[row] = code

    def _set_payload_names(self, events: EventBatch, name: I32, domain: I32, payload_at: I64) -> None:
        """Events of the payload functions have no message but the field that their schema marks as one."""
        for row in np.flatnonzero((name == 0) & (payload_at >= 0)).tolist():
            for payload in stored_payloads(events.blobs, int(payload_at[row])):
                message = self.schemas.message(int(domain[row]), payload.schema_id, payload.data)
                if message is not None:
                    name[row] = self.names[message]


def _codes(of_distinct: list[int], which: NDArray[np.intp]) -> I32:
    return np.array(of_distinct, np.int32)[which]
