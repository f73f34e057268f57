"""Tables of savings: what stands below a waterfall."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from mtpprof.analyzers.answers.run_report import make_report
from mtpprof.cli.render.savings import waterfall_tables
from tests.runs import Recipe, write_run


def test_a_waterfall_that_leaves_more_than_it_explains_says_so(tmp_path: Path) -> None:
    report = make_report(write_run(tmp_path / "run", Recipe(models=("nemotron-3-super",), profile_steps=1)))
    (difference,) = report.cases[0].differences
    fall = difference.waterfall
    assert fall is not None
    assert fall.explains
    more = abs(fall.difference_ns) + 1
    first, *parts = fall.parts
    rest = more - fall.rest_ns
    vague = replace(fall, rest_ns=more, parts=[replace(first, arm_ns=first.arm_ns - rest), *parts])
    for each, said in ((fall, False), (vague, True)):
        (table,) = waterfall_tables("t", [replace(difference, waterfall=each)])
        assert (f"whole difference ({difference.arm})" in table.note) is said
