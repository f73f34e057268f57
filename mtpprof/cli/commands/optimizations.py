"""`mtpprof optimizations`: the catalogue, and who may use what."""

from __future__ import annotations

from typing import Annotated

import typer

from mtpprof.cli.render.output import Format, Table, write_json, write_tables
from mtpprof.models.spec import Scale


def optimizations(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", help="Check these (preset, directory or config.json; repeatable); none: all presets."
        ),
    ] = None,
    tp: Annotated[int, typer.Option(help="Tensor-parallel size.")] = 4,
    draft_tokens: Annotated[
        int | None, typer.Option(help="Draft tokens per step; default: 3 where the model has an MTP module.")
    ] = None,
    style: Annotated[Format, typer.Option("--format", help="How to write the result.")] = Format.TABLE,
) -> None:
    """List the optimizations, and for each model whether it can use them and why not.

    Examples:

        mtpprof optimizations

        mtpprof optimizations --model kimi-k3 --model nemotron-3-super --tp 8
    """
    from mtpprof.models.hf import resolve_model
    from mtpprof.models.ledger import Workload
    from mtpprof.models.optimizations.catalogue import all_optimizations
    from mtpprof.models.presets import PRESETS

    catalogue = all_optimizations()
    verdicts = []
    for name in model or PRESETS:
        spec = resolve_model(name, scale=Scale.FULL)
        drafts = draft_tokens if draft_tokens is not None else (3 if spec.mtp else 0)
        workload = Workload(concurrency=1, draft_tokens=drafts, tp=tp, dtype="bf16")
        verdicts += [(spec.name, entry.id, entry.eligible(spec, workload)) for entry in catalogue.values()]
    if style is Format.JSON:
        entries = [
            {
                "id": entry.id,
                "title": entry.title,
                "source": entry.source,
                "summary": entry.summary,
                "changes": entry.changes,
                "proof": entry.proof,
                "switches": dict(entry.switches),
            }
            for entry in catalogue.values()
        ]
        eligibility = [
            {"model": name, "optimization": entry, "eligible": verdict.ok, "reason": verdict.reason}
            for name, entry, verdict in verdicts
        ]
        write_json({"optimizations": entries, "eligibility": eligibility})
        return
    tables = [
        Table(
            title="Optimizations",
            columns=("optimization", "what it does", "what changes", "source"),
            rows=[(entry.id, entry.summary, entry.changes, entry.source) for entry in catalogue.values()],
        ),
        Table(
            title=f"Who can use them (TP {tp})",
            columns=("model", "optimization", "eligible", "reason"),
            rows=[
                (name, entry, "yes" if verdict.ok else "no", verdict.reason)
                for name, entry, verdict in verdicts
            ],
        ),
    ]
    write_tables(tables, style)
