"""Plan files offer the options of `run`, no more and no fewer."""

from __future__ import annotations

import inspect

from mtpprof.cli.commands.run import run
from mtpprof.cli.options import PlanFile

ONLY_ON_THE_COMMAND_LINE = {
    *("context", "config", "resume", "out", "style", "dashboard"),
    *("nnodes", "node_rank", "rdzv_endpoint"),
}


def test_a_plan_file_has_the_options_of_run() -> None:
    options = set(inspect.signature(run).parameters) - ONLY_ON_THE_COMMAND_LINE
    assert set(PlanFile.__struct_fields__) == options
