"""A real run's traces, exported: Perfetto's engine finds every event, and the ledger's differences on the saved track."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pytest

from mtpprof.cli.commands.export import export
from mtpprof.cli.render.output import Format
from mtpprof.models.ledger import Workload
from mtpprof.models.optimizations.catalogue import expected_collectives
from mtpprof.models.spec import ModelSpec
from tests.functional.perfetto_engine import load, needs_engine
from tests.integration.conftest import SMALL, Started


@needs_engine
def test_a_run_in_perfetto(start: Callable[..., Started], capsys: pytest.CaptureFixture[str]) -> None:
    run = start("--tp", "2", "--model", "nemotron-3-super", "--steps", "2", "--rounds", "1", *SMALL)
    code, _, err = run.finish(timeout_s=200)
    assert code == 0, err
    directory, out = run.directory, run.directory.root / "saved.pftrace"
    capsys.readouterr()
    export(
        [directory.root],
        output=out,
        compare=("baseline", "commutative-reduce"),
        with_queries=True,
        style=Format.JSON,
    )
    done = json.loads(capsys.readouterr().out)
    sql = (directory.root / "saved.pftrace.sql").read_text()
    events, saved, kinds = load(
        out,
        "select count(*) from slice where category not like 'mtpprof.%'",
        "select name, extract_arg(arg_set_id, 'debug.rank'), count(*) from slice where category = 'mtpprof.saved' group by 1, 2",
        sql,
    )
    case = directory.run().cases[0]
    spec = msgspec.convert(case.model, ModelSpec)
    workload = Workload(
        concurrency=case.concurrency, draft_tokens=case.draft_tokens, tp=case.tp, dtype=case.dtype
    )
    before, after = (
        sum(entry.count for entry in expected_collectives(spec, workload, frozenset(arm.enabled)))
        for arm in case.arms
        if arm.repeats is None
    )
    assert events.value == done["events"] > 1000
    assert saved.rows == tuple(("removed all_reduce", rank, before - after) for rank in (0, 1))
    assert {row[0] for row in kinds.rows} == {"baseline", "commutative-reduce"}
