"""Whether the traces of an arm are what the run recorded: of every rank one, each its own, and each whole.

The decision: only such traces are held against the ledger. A file that was cut off or copied over another would show collectives as
missing that did run, so it is a reason to answer nothing about its arm, and never a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mtpprof.analyzers.table import TraceSet
from mtpprof.analyzers.verdicts import Answer, Problem, Verdict

_NOT_OF_THIS_RUN = frozenset({Verdict.DUPLICATE_RANK, Verdict.COPY, Verdict.STALE_FILE})


def why_unfit(opened: Sequence[TraceSet], ranks: int, ranked: Sequence[Path]) -> str:
    """Why traces must not be compared with what was expected of the run; empty: they may.

    Args:
        opened: What was read of the arm.
        ranks: Ranks of the run.
        ranked: Files that hold one rank each, in order of the ranks they must be; empty: the files are not one a rank.
    """
    problems = [problem for traces in opened for problem in traces.all_problems()]
    sentences = [*_of_other_ranks(opened, ranked), *(item.sentence for item in problems if _unfit(item))]
    seen = {rank for traces in opened for rank in traces.ranks}
    absent = sorted(set(range(ranks)) - seen)
    if not sentences and absent and ranks > 1:
        sentences = [f"{opened[0].label}: holds no trace of rank {', '.join(map(str, absent))}."]
    return " ".join(dict.fromkeys(sentences)).removesuffix(".")


def _unfit(problem: Problem) -> bool:
    return problem.left_out or Answer.COUNTS in problem.forbids or problem.verdict in _NOT_OF_THIS_RUN


def _of_other_ranks(opened: Sequence[TraceSet], ranked: Sequence[Path]) -> list[str]:
    place = {str(path): rank for rank, path in enumerate(ranked)}
    return [
        f"{table.meta.path}: it says that it is rank {table.meta.rank}, and stands in the place of rank {place[table.meta.path]}."
        for traces in opened
        for table in traces.tables
        if table.meta.rank not in (None, place.get(table.meta.path, table.meta.rank))
    ]
