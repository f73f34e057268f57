"""`mtpprof predict`: what the optimizations should save on a machine that is not at hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from mtpprof.cli.render.output import Format, Table, stdout_console, write_json, write_tables
from mtpprof.errors import UsageError
from mtpprof.models.spec import Scale

if TYPE_CHECKING:
    from mtpprof.analyzers.predict.predict import Bracket, Prediction
    from mtpprof.models.hardware import HardwareProfile

DEFAULT_CONCURRENCY = (1, 64)


def predict(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="Preset, model directory or config.json.")] = "deepseek-v3.2",
    tp: Annotated[int, typer.Option(help="Tensor-parallel size.")] = 8,
    concurrency: Annotated[
        list[int] | None, typer.Option(help="Sequences decoded together; repeatable. Default: 1 and 64.")
    ] = None,
    draft_tokens: Annotated[
        int | None,
        typer.Option(help="Draft tokens per step. Default: 3 for DeepSeek-like MTP models, else 0."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Dtype of activations.")] = "bf16",
    hardware: Annotated[
        str | None,
        typer.Option(help="Hardware profile, h200 by default; a name that is not known lists all."),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--from", metavar="RUN", help="Fit the cost model to this run's own traces instead."),
    ] = None,
    link: Annotated[
        str, typer.Option(metavar="scale-up|scale-out", help="What connects the ranks.")
    ] = "scale-up",
    step_ms: Annotated[
        float | None,
        typer.Option(min=1e-6, help="Step time of the baseline in ms: savings also as shares of it."),
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Hold the model against published results, and stop.")
    ] = False,
    style: Annotated[Format, typer.Option("--format", help="How to write the result.")] = Format.TABLE,
) -> None:
    """Predict what each optimization saves, from the model's ledger and the costs of collectives on a machine.

    Gives a bracket: with the fastest and with the slowest way that the machine has for each call. Waiting is not in it.

    Examples:

        mtpprof predict --model nemotron-3-super --tp 4 --hardware h200 --step-ms 4.64

        mtpprof predict --model glm-5.2 --tp 8 --draft-tokens 5 --hardware gb300 --link scale-out

        mtpprof predict --model nemotron-3-ultra --tp 8 --from runs/mine

        mtpprof predict --published
    """
    if published:
        _check_alone(context)
        _published(style)
        return
    from mtpprof.analyzers.predict.predict import PredictionReport
    from mtpprof.analyzers.predict.predict import predict as predict_one
    from mtpprof.models.hf import resolve_model
    from mtpprof.models.ledger import Workload

    if link not in ("scale-up", "scale-out"):
        raise UsageError(f"--link {link}: choose from scale-up, scale-out.")
    spec = resolve_model(model, scale=Scale.FULL)
    spec.check_tp(tp)
    profile = _profile(hardware, run)
    drafts = spec.default_draft_tokens if draft_tokens is None else draft_tokens
    answers = [
        predict_one(
            spec,
            Workload(concurrency=count, draft_tokens=drafts, tp=tp, dtype=dtype),
            profile,
            link=link,
            step_ns=step_ms * 1e6 if step_ms else None,
        )
        for count in concurrency or DEFAULT_CONCURRENCY
    ]
    if style is Format.JSON:
        write_json(PredictionReport(predictions=answers))
        return
    tables = [_table(answer) for answer in answers]
    if style in (Format.TABLE, Format.MD):
        for table in tables:
            if not table.rows:
                stdout_console().print(f"{table.title}\n{table.note}")
        tables = [table for table in tables if table.rows]
    write_tables(tables, style)
    if style is Format.TABLE and tables:
        stdout_console().print(f"Not in the model: {'; '.join(answers[0].without)}.")
        stdout_console().print(
            f"Figures: {profile.title}; sources: mtpprof predict --format json, docs/predict.md."
        )


def _profile(hardware: str | None, run: str | None) -> HardwareProfile:
    from mtpprof.models.hardware import load_profile

    if run is None:
        return load_profile(hardware or "h200")
    if hardware is not None:
        raise UsageError("--hardware and --from exclude each other.")
    from mtpprof.analyzers.compare.targets import parse_target, sides_of
    from mtpprof.analyzers.predict.cost_fit import fitted_profile

    target = parse_target(run)
    return fitted_profile(target.path.name, [side.traces.calls for side in sides_of(target) if side.traces])


def _check_alone(context: typer.Context) -> None:
    """Refuse what `--published` would leave out of account.

    Raises:
        UsageError: an option of a prediction was given.
    """
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in ("published", "style") and source is not None and source.name != "DEFAULT":
            option = {"run": "from"}.get(name, name.replace("_", "-"))
            raise UsageError(
                f"--published and --{option}: published results are held against their own models and machines; leave --{option} out."
            )


def _table(answer: Prediction) -> Table:
    from mtpprof.cli.render.units import UNKNOWN, bytes_text, count_text, percent_text, signed

    drafts = f", {answer.draft_tokens} draft tokens" if answer.draft_tokens else ""
    where = f"{answer.model}, TP {answer.tp}, concurrency {answer.concurrency}{drafts}, {answer.hardware} {answer.link}"
    terms = _terms_that_change(answer)
    shares = any(difference.share for difference in answer.differences)
    columns = ("arm", "calls", "payload", *terms, "step", *(["of the step"] if shares else []))
    rows = []
    for difference in answer.differences:
        row = [
            difference.arm,
            signed(count_text(difference.calls)),
            signed(bytes_text(difference.payload_bytes)),
            *(_bracket_text(difference.terms[term]) if term in difference.terms else "-" for term in terms),
            _bracket_text(difference.total),
        ]
        if shares:
            share = difference.share
            row.append(
                f"{percent_text(share.fastest_ns)} to {percent_text(share.slowest_ns)}" if share else UNKNOWN
            )
        rows.append(tuple(row))
    return Table(
        title=f"{where}: predicted difference per step, fastest to slowest way" if rows else where,
        columns=columns,
        rows=rows,
        right=frozenset(columns[1:]),
        note="\n".join(_notes(answer)),
    )


def _notes(answer: Prediction) -> Iterator[str]:
    from mtpprof.cli.render.units import bytes_text

    base = answer.arms[0]
    if not base.calls:
        yield f"There is no communication at TP {answer.tp}: no optimization can save any."
        return
    yield (
        f"Baseline: {base.calls} calls, {bytes_text(base.payload_bytes)} payload, collectives "
        f"{_bracket_text(base.terms['collectives'], sign=False)}. Fastest: {'; '.join(base.ways)}."
    )
    if not answer.differences:
        yield "No optimization changes what this model sends here."
    if answer.contradiction:
        yield f"Shares withheld: {answer.contradiction}; give the step time of this model at this concurrency, or another machine."
    for reason, arms in _unknown(answer).items():
        yield f"{', '.join(arms)}: ? since {reason}."
    for name, reason in answer.not_applicable.items():
        yield f"Not applicable: {name} ({reason})."


def _unknown(answer: Prediction) -> dict[str, list[str]]:
    """Why figures are missing, and of which arms."""
    found: dict[str, list[str]] = {}
    for difference in answer.differences:
        if difference.reason:
            found.setdefault(difference.reason, []).append(difference.arm)
    return found


def _terms_that_change(answer: Prediction) -> list[str]:
    found = {
        name: None
        for difference in answer.differences
        for name, term in difference.terms.items()
        if term is None or term.fastest_ns or term.slowest_ns
    }
    return list(found)


def _bracket_text(bracket: Bracket | None, *, sign: bool = True) -> str:
    from mtpprof.cli.render.units import UNKNOWN, signed, time_text

    if bracket is None:
        return UNKNOWN
    texts = [time_text(value) for value in (bracket.fastest_ns, bracket.slowest_ns)]
    if sign:
        texts = [signed(text) for text in texts]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)


def _published(style: Format) -> None:
    from mtpprof.analyzers.predict.published import PublishedReport, hold_against_published
    from mtpprof.cli.render.units import signed, time_text

    held = list(hold_against_published())
    if style is Format.JSON:
        write_json(PublishedReport(results=held))
        return
    columns = ("result", "source", "held against", "published", "predicted", "verdict")
    rows = [
        (
            entry.id,
            entry.source,
            f"{entry.hardware} {entry.link}",
            signed(time_text(entry.published_ns)),
            _bracket_text(entry.predicted),
            entry.verdict,
        )
        for entry in held
    ]
    notes = [f"{entry.id}: {entry.basis}." for entry in held]
    notes += [f"{entry.id}, what would explain it: {line}." for entry in held for line in entry.would_explain]
    title = "published results against the cost model, difference per step"
    write_tables([Table(title=title, columns=columns, rows=rows, note="\n".join(notes))], style)
