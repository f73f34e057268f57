"""`mtpprof models`: the presets and their dimensions."""

from __future__ import annotations

from typing import Annotated

import typer

from mtpprof.cli.render.output import Format, Table, write_json, write_tables
from mtpprof.models.spec import ModelSpec, Scale


def models(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Presets, model directories or config.json files; none: all presets."),
    ] = None,
    scale: Annotated[Scale, typer.Option(help="Dimensions at this scale.")] = Scale.FULL,
    style: Annotated[Format, typer.Option("--format", help="How to write the result.")] = Format.TABLE,
) -> None:
    """List the models that mtpprof knows, with the dimensions that decide their communication.

    Examples:

        mtpprof models

        mtpprof models --scale tiny

        mtpprof models ./my-model/config.json --format json
    """
    import msgspec

    from mtpprof.models.hf import resolve_model
    from mtpprof.models.presets import PRESETS

    specs = [resolve_model(name, scale=scale) for name in names or PRESETS]
    if style is Format.JSON:
        write_json([msgspec.to_builtins(spec) for spec in specs])
        return
    columns = (
        "model",
        "title",
        "hidden",
        "vocabulary",
        "layers",
        "MoE layers",
        "experts",
        "latent",
        "MTP",
        "source",
    )
    table = Table(
        title=f"Models at scale {scale}",
        columns=columns,
        rows=[_row(spec) for spec in specs],
        right=frozenset(columns[2:8]),
    )
    write_tables([table], style)


def _row(spec: ModelSpec) -> tuple[str, ...]:
    moe = spec.moe
    return (
        spec.name,
        spec.title,
        str(spec.hidden_size),
        str(spec.vocab_size),
        str(spec.layers),
        str(spec.blocks.count("E")),
        f"{moe.experts} / {moe.top_k}" if moe else "-",
        str(moe.latent_size) if moe and moe.latent_size else "-",
        spec.mtp.blocks if spec.mtp else "-",
        spec.source,
    )
