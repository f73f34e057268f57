"""Arms, order and refusals of a plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.errors import UsageError
from mtpprof.profilers.plan import PlanOptions, lay_out_arms, make_cases, visit_order


def test_default_plan_is_a_2x2_and_an_on_off_at_two_concurrencies() -> None:
    cases = make_cases(PlanOptions(tp=4))
    assert [case.id for case in cases] == [
        "deepseek-v3.2-tiny-tp4-c1-k3-bf16",
        "deepseek-v3.2-tiny-tp4-c8-k3-bf16",
        "nemotron-3-super-tiny-tp4-c1-k0-bf16",
        "nemotron-3-super-tiny-tp4-c8-k0-bf16",
    ]
    assert [arm.name for arm in cases[0].arms] == [
        "baseline",
        "baseline-repeat",
        "allreduce-norm-fusion",
        "local-argmax",
        "all-on",
    ]
    assert [arm.name for arm in cases[2].arms] == ["baseline", "baseline-repeat", "commutative-reduce"]
    assert set(cases[2].not_applicable) == {"allreduce-norm-fusion", "local-argmax"}
    assert cases[0].arms[4].enabled == {"allreduce-norm-fusion", "local-argmax"}


def test_one_at_a_time_ends_with_all_together() -> None:
    arms = lay_out_arms(always=[], varied=["a", "b", "c"], design="one-at-a-time")
    assert [arm.name for arm in arms] == ["baseline", "baseline-repeat", "a", "b", "c", "all-on"]


def test_what_is_always_on_is_on_in_the_baseline_too() -> None:
    arms = lay_out_arms(always=["x"], varied=["a"], design="factorial")
    assert [sorted(arm.enabled) for arm in arms] == [["x"], ["x"], ["a", "x"]]


def test_a_large_factorial_is_refused() -> None:
    with pytest.raises(UsageError, match="64 arms"):
        lay_out_arms(always=[], varied=list("abcdef"), design="factorial")


@given(st.lists(st.text(min_size=1), min_size=1, max_size=6, unique=True), st.integers(1, 9), st.integers())
def test_every_arm_is_visited_once_a_round_and_pairs_of_rounds_mirror(
    arms: list[str], rounds: int, seed: int
) -> None:
    order = visit_order(arms, rounds, seed)
    assert len(order) == rounds
    assert all(sorted(names) == sorted(arms) for names in order)
    assert all(order[i + 1] == order[i][::-1] for i in range(0, rounds - 1, 2))
    assert order == visit_order(arms, rounds, seed)


def test_over_two_mirrored_rounds_every_arm_has_the_same_mean_position() -> None:
    arms = ["a", "b", "c", "d"]
    first, second = visit_order(arms, 2, seed=3)
    sequence = first + second
    assert {sum(i for i, name in enumerate(sequence) if name == arm) for arm in arms} == {7}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (PlanOptions(tp=3), "does not divide"),
        (PlanOptions(models=("nemotron-3-super",), tp=4, draft_tokens=-1), "--draft-tokens -1"),
        (PlanOptions(models=("kimi-k2",), tp=4, draft_tokens=2), "no MTP module"),
        (PlanOptions(tp=4, concurrency=(0,)), "--concurrency 0"),
        (PlanOptions(tp=4, rounds=0), "--rounds 0"),
        (PlanOptions(tp=4, settings={"nonsense": "on"}), "nonsense"),
        (
            PlanOptions(models=("kimi-k3",), tp=4, settings={"commutative-reduce": "both"}),
            "none of the models",
        ),
        (PlanOptions(models=("deepseek-v32",), tp=4), "deepseek-v3.2"),
    ],
)
def test_refusals_name_what_is_wrong(options: PlanOptions, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        make_cases(options)


def test_naming_one_optimization_leaves_the_others_off() -> None:
    (case,) = make_cases(
        PlanOptions(models=("deepseek-v3.2",), tp=2, concurrency=(1,), settings={"local-argmax": "both"})
    )
    assert [arm.name for arm in case.arms] == ["baseline", "baseline-repeat", "local-argmax"]
