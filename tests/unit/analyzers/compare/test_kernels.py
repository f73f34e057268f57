"""Kernels and memory traffic that an arm saves beside its collectives."""

from __future__ import annotations

import pytest

from mtpprof.analyzers.answers.run_report import make_report
from mtpprof.analyzers.compare.changes import CallForm, Change, What
from mtpprof.analyzers.compare.difference import Difference
from mtpprof.analyzers.compare.kernels import KernelChange, memory_of_fusions
from tests.runs import Recipe, write_run

DRAFTS, ROWS, SEQUENCES, HIDDEN, ITEM = 3, 8, 2, 256, 2


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Difference]:
    """A norm after each plain all-reduce: of 2 sequences with 3 drafts, the first draft pass runs over 8 rows."""
    root = tmp_path_factory.mktemp("run") / "made"
    (case,) = make_report(write_run(root, Recipe(models=("deepseek-v3.2",)))).cases
    return {difference.arm: difference for difference in case.differences}


def test_a_fusion_saves_its_norms_and_four_passes_of_each(
    differences: dict[str, Difference],
) -> None:
    fused = differences["allreduce-norm-fusion"]
    assert (fused.calls, fused.payload_bytes) == (0, 0)
    assert fused.kernels is not None
    assert fused.kernels == KernelChange(
        what="operations",
        base=fused.kernels.base,
        arm=fused.kernels.base - DRAFTS,
        difference=-DRAFTS,
    )
    assert fused.memory_bytes == -4 * (ROWS + (DRAFTS - 1) * SEQUENCES) * HIDDEN * ITEM


def test_memory_of_other_optimizations_is_told_too(differences: dict[str, Difference]) -> None:
    local, both = differences["local-argmax"], differences["all-on"]
    assert local.memory_bytes is not None
    assert local.memory_bytes < 0
    assert both.memory_bytes == local.memory_bytes + (differences["allreduce-norm-fusion"].memory_bytes or 0)


def change(what: What, before: str, after: str, shape: list[int] | None, calls: float = 2) -> Change:
    first, second = (
        CallForm(shape=shape, dtype="bf16", fused=fused, implementation="x") for fused in (before, after)
    )
    return Change(
        what=what,
        kind="all_reduce",
        phase="target",
        calls=calls,
        before=first,
        after=second,
        sites=[],
        net_calls=0,
        payload_bytes=0,
        wire_bytes=0,
        time_ns=0,
    )


NORM = "residual_rmsnorm"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ([], None),
        ([change("fused", "", NORM, [4, 8])], -4 * 2 * 4 * 8 * 2),
        ([change("unfused", NORM, "", [4, 8])], 4 * 2 * 4 * 8 * 2),
        ([change("fused", "", f"moe_{NORM}", [4, 8], 1), change("unfused", NORM, "", [4, 8], 1)], 0),
        ([change("reimplemented", NORM, NORM, [4, 8])], None),
        ([change("fused", "", NORM, None)], None),
    ],
)
def test_without_a_model_fusions_alone_are_told(changed: list[Change], expected: float | None) -> None:
    assert memory_of_fusions(changed) == expected
