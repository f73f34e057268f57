"""SQL for Perfetto's query page that gives the sums of `mtpprof analyze` over an export.

`QUERIES` is the registry: to add a view is to add a row. Figures are over the calls of which they are known, with the
number of those beside them, as everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mtpprof.analyzers.perfetto.communication import COLLECTIVE
from mtpprof.analyzers.perfetto.compare import SAVED
from mtpprof.analyzers.perfetto.files import Format

_TEXTS = ("arm", "kind", "implementation", "algorithm", "fused", "phase", "site", "shape", "dtype", "bytes")
_NUMBERS = (
    "rank",
    "step",
    "payload_bytes",
    "wire_bytes",
    "exposed_ns",
    "wait_ns",
    "transfer_ns",
    "transient",
)
_SAVINGS = ("change", "saved_ns", "saved_payload_bytes", "saved_wire_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A view of the collectives of an export."""

    name: str
    title: str
    columns: str
    source: str
    group: str


_SUMS = """\
  count(*) AS calls,
  sum(dur) AS time_ns,
  sum(exposed_ns) AS exposed_ns,
  sum(payload_bytes) AS payload_bytes,
  count(payload_bytes) AS calls_with_known_payload,
  sum(wire_bytes) AS wire_bytes,
  count(wire_bytes) AS calls_with_known_wire_bytes,
  sum(wait_ns) AS wait_ns,
  sum(transfer_ns) AS transfer_ns,
  count(wait_ns) AS calls_with_known_wait"""

QUERIES = (
    Query(
        name="mtpprof_by_kind",
        title="time and bytes by arm and kind, over all ranks",
        columns=f"arm, kind,\n{_SUMS}",
        source="mtpprof_collectives",
        group="arm, kind",
    ),
    Query(
        name="mtpprof_by_phase",
        title="the same by phase, fused calls apart",
        columns=f"arm, phase, kind, fused,\n{_SUMS}",
        source="mtpprof_collectives",
        group="arm, phase, kind, fused",
    ),
    Query(
        name="mtpprof_waits_by_rank",
        title="who waited, and how long",
        columns=f"arm, rank,\n{_SUMS}",
        source="mtpprof_collectives",
        group="arm, rank",
    ),
    Query(
        name="mtpprof_per_step",
        title="figures of each step of each rank",
        columns=f"arm, rank, step,\n{_SUMS}",
        source="mtpprof_collectives",
        group="arm, rank, step",
    ),
    Query(
        name="mtpprof_saved",
        title="what the second arm of a comparison removed, added, fused and replaced",
        columns="""\
change, kind, phase, site,
  count(*) AS calls,
  sum(saved_ns) AS saved_ns,
  sum(saved_payload_bytes) AS saved_payload_bytes,
  count(saved_payload_bytes) AS calls_with_known_payload,
  sum(saved_wire_bytes) AS saved_wire_bytes""",
        source="mtpprof_changes",
        group="change, kind, phase, site",
    ),
)


def sql(form: Format, trace: Path) -> str:
    """The text of a `.sql` file for an export in the format `form`."""
    views = [
        _slices("mtpprof_collectives", COLLECTIVE, (*_TEXTS, *_NUMBERS), form),
        _slices("mtpprof_changes", SAVED, (*_TEXTS, *_NUMBERS, *_SAVINGS), form),
        *(
            f"-- {query.title[0].upper()}{query.title[1:]}.\n"
            f"CREATE OR REPLACE PERFETTO VIEW {query.name} AS\n"
            f"SELECT {query.columns}\nFROM {query.source}\nGROUP BY {query.group}\nORDER BY {query.group};\n"
            for query in QUERIES
        ),
    ]
    listed = "\n".join(f"--   SELECT * FROM {query.name};  -- {query.title}" for query in QUERIES)
    name = trace.name.encode("ascii", "replace").decode().replace("\n", " ")
    head = (
        f'-- Views of the collectives in {name}, for the page "Query (SQL)" of Perfetto\'s UI.\n'
        f"-- Run all of this once; then ask one of\n{listed}\n"
        f"-- Sums are over the calls of which a figure is known; what is not known is NULL.\n"
    )
    return "\n".join([head, *views, f"SELECT * FROM {QUERIES[0].name};\n"])


def _slices(name: str, category: str, keys: tuple[str, ...], form: Format) -> str:
    columns = ",\n".join(f"  extract_arg(arg_set_id, '{form.argument_prefix}{key}') AS {key}" for key in keys)
    return (
        f"CREATE OR REPLACE PERFETTO VIEW {name} AS\n"
        f"SELECT id, ts, dur, name, track_id,\n{columns}\nFROM slice\nWHERE category = '{category}';\n"
    )
