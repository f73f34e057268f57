"""Bytes of calls that carry none: from their position in a step, or from a model's dimensions.

Replayed graphs have kernels without operations, so nothing of a call is recorded but its name and its place. Two
things tell its size:

*Position.* Another step of the same trace issued the same sequence of collectives, and there the size of that place is known
(a prefill that ran eagerly, say). Sizes scale with the rows of the batch: tensors of the model with the tokens, gathers of logits with the
sequences in a prefill and with the tokens in a decode. A graph captured for a larger batch than it is used for moves more.

*Model.* The ledger of the model that the user names, for this batch, has exactly this step's sequence of collectives with
one set of the optimizations switched on. That tells the module (site) of each call too.

Both are marked derived, and `how` says from what.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from mtpprof.analyzers.calls.known import Columns
from mtpprof.analyzers.calls.steps import PREFILL, TARGET, StepName
from mtpprof.analyzers.calls.table import Provenance, Vocabulary
from mtpprof.analyzers.numeric.arrays import I64
from mtpprof.analyzers.traces.table import MISSING
from mtpprof.errors import UsageError
from mtpprof.models.ledger import LedgerEntry, Workload, prefill_ledger
from mtpprof.models.optimizations.catalogue import CATALOGUE, expected_collectives
from mtpprof.models.spec import ModelSpec
from mtpprof.models.traffic import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """Payload of one place in a sequence, per row."""

    bytes_per_row: int
    by_tokens: bool
    """Rows are the tokens of the batch; False: the rows of its logits."""
    dtype: int
    rows: int
    """Rows of the step in which it was seen."""


def derive_by_position(
    columns: Columns, step: I64, names: tuple[StepName, ...], vocabulary: Vocabulary
) -> None:
    """Fills in payloads of calls whose place in the step is known from another step of the same sequence."""
    members = [np.flatnonzero(step == index) for index in range(len(names))]
    patterns = [columns["kind"][mine].tobytes() for mine in members]
    units: dict[tuple[bytes, int], _Unit] = {}
    gather = vocabulary.code(Kind.ALL_GATHER)
    for name, mine, pattern in zip(names, members, patterns, strict=True):
        tokens, logits = name.rows, _logit_rows(name)
        if tokens <= 0 or logits <= 0:
            continue
        for place, call in enumerate(mine.tolist()):
            payload = int(columns["payload_bytes"][call])
            if payload <= 0 or (pattern, place) in units:
                continue
            by_logits = columns["kind"][call] == gather and payload % logits == 0
            rows = logits if by_logits else tokens
            if payload % rows == 0:
                units[pattern, place] = _Unit(
                    bytes_per_row=payload // rows,
                    by_tokens=not by_logits,
                    dtype=int(columns["dtype"][call]),
                    rows=rows,
                )
    for name, mine, pattern in zip(names, members, patterns, strict=True):
        for place, call in enumerate(mine.tolist()):
            unit = units.get((pattern, place))
            rows = MISSING if unit is None else name.rows if unit.by_tokens else _logit_rows(name)
            if unit is not None and rows > 0 and columns["payload_bytes"][call] == MISSING:
                how = (
                    f"position in the step, where {unit.rows} rows were seen with their size, for {rows} rows"
                )
                _derived(columns, call, unit.bytes_per_row * rows, unit.dtype, vocabulary.code(how))


def _logit_rows(name: StepName) -> int:
    """Rows whose logits a step computes: the last of each sequence in a prefill, all in a decode; -1: not told."""
    if name.phase == PREFILL:
        return name.sequences
    return name.rows if name.phase == TARGET else MISSING


def _derived(columns: Columns, call: int, payload: int, dtype: int, how: int) -> None:
    columns["payload_bytes"][call] = payload
    columns["provenance"][call] = Provenance.DERIVED
    columns["how"][call] = how
    columns["dtype"][call] = columns["dtype"][call] or dtype


def derive_from_model(
    columns: Columns, step: I64, names: tuple[StepName, ...], vocabulary: Vocabulary, model: ModelSpec
) -> None:
    """Fills in payloads, shapes and sites from the ledger of `model`, for the steps that have exactly its collectives."""
    ledgers: dict[StepName, list[tuple[LedgerEntry, ...]]] = {}
    for index, name in enumerate(names):
        mine = np.flatnonzero(step == index)
        if not len(mine):
            continue
        group = int(columns["group_size"][mine].max())
        if name not in ledgers:
            ledgers[name] = _ledgers(model, name, group)
        fitting = [ledger for ledger in ledgers[name] if _fits(columns, mine, ledger, vocabulary)]
        if not fitting:
            reason = vocabulary.code(f"this step's collectives are not those of {model.name}")
            unknown = mine[columns["payload_bytes"][mine] == MISSING]
            columns["how"][unknown] = reason
            continue
        for place, call in enumerate(mine.tolist()):
            _from_entries(columns, call, {ledger[place] for ledger in fitting}, vocabulary, model.name)


def _ledgers(model: ModelSpec, name: StepName, group: int) -> list[tuple[LedgerEntry, ...]]:
    """The ledgers that the step could have, one for each set of optimizations."""
    drafts = max(name.draft_tokens, 0)
    if group < 2 or name.sequences < 1 or name.phase not in (PREFILL, TARGET):
        return []
    found = []
    try:
        workload = Workload(concurrency=name.sequences, draft_tokens=drafts, tp=group)
        if name.phase == PREFILL:
            if name.rows % name.sequences:
                return []
            return [prefill_ledger(model, workload, name.rows // name.sequences)]
        ids = [item.id for item in CATALOGUE.values() if item.eligible(model, workload).ok]
        for count in range(len(ids) + 1):
            for enabled in combinations(ids, count):
                ledger = expected_collectives(model, workload, frozenset(enabled))
                if ledger not in found:
                    found.append(ledger)
    except UsageError:
        return []
    return found


def _fits(columns: Columns, mine: I64, ledger: tuple[LedgerEntry, ...], vocabulary: Vocabulary) -> bool:
    if len(ledger) != len(mine):
        return False
    kinds = [vocabulary.code(entry.kind) for entry in ledger]
    if kinds != columns["kind"][mine].tolist():
        return False
    known = columns["payload_bytes"][mine]
    expected = np.array([entry.payload_bytes for entry in ledger], np.int64)
    return bool(((known == MISSING) | (known == expected)).all())


def _from_entries(
    columns: Columns, call: int, entries: set[LedgerEntry], vocabulary: Vocabulary, model: str
) -> None:
    """What all ledgers that fit say of one call; where they disagree it stays unknown."""
    sites, payloads = {entry.site for entry in entries}, {entry.payload_bytes for entry in entries}
    if len(sites) == 1 and not columns["site"][call]:
        columns["site"][call] = vocabulary.code(next(iter(sites)))
    if len(payloads) == 1 and columns["payload_bytes"][call] == MISSING:
        entry = next(iter(entries))
        how = vocabulary.code(f"dimensions of {model}, by position in the step")
        _derived(columns, call, entry.payload_bytes, vocabulary.code(entry.dtype), how)
        columns["shape"][call] = vocabulary.code("x".join(map(str, entry.shape)))
