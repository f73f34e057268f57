"""The cost model: sizes by hand, published results, and figures with sources."""

from __future__ import annotations

from typing import Any

import pytest

from mtpprof.analyzers.predict.cost_fit import fit_line
from mtpprof.analyzers.predict.predict import COLLECTIVES, Bracket, Prediction, predict
from mtpprof.analyzers.predict.published import hold_against_published
from mtpprof.errors import InputError, UsageError
from mtpprof.models.hardware import HardwareProfile, load_profile, parse_profile, profile_names
from mtpprof.models.ledger import Workload
from mtpprof.models.optimizations.allreduce_norm_fusion import NORM
from mtpprof.models.optimizations.local_argmax import ARGMAX, COPY
from mtpprof.models.presets import load_preset
from mtpprof.models.spec import Scale

SUPER = load_preset("nemotron-3-super", Scale.FULL)
GLM = load_preset("glm-5.2", Scale.FULL)

SIMPLE: dict[str, Any] = {
    "title": "a machine with round figures",
    "memory_gb_s": {"value": 1000, "source": "made up"},
    "kernel_us": {"value": 1.0, "source": "made up"},
    "collective": [
        {
            "kind": kind,
            "algorithm": "ring",
            "by": "NCCL",
            "link": "scale-up",
            "alpha_us": 10,
            "hop_us": 1,
            "beta_gb_s": 100,
            "source": "made up",
        }
        for kind in ("all_reduce", "all_gather")
    ],
}


def simple() -> HardwareProfile:
    return parse_profile(SIMPLE, "simple")


def known(bracket: Bracket | None) -> Bracket:
    assert bracket is not None
    return bracket


def glm(profile: HardwareProfile, concurrency: int) -> Prediction:
    return predict(GLM, Workload(concurrency=concurrency, draft_tokens=5, tp=8), profile)


def test_a_removed_all_reduce_is_worth_its_start_and_its_bytes() -> None:
    prediction = predict(SUPER, Workload(concurrency=1, draft_tokens=0, tp=4), simple())
    (difference,) = prediction.differences
    # 40 calls of 2048 bytes: 10 + 2 hops µs, and 2·3/4·2048 bytes at 100 B/ns
    expected = -40 * (12_000 + 1.5 * 2048 / 100)
    assert known(difference.total).fastest_ns == pytest.approx(expected)
    assert known(difference.total).slowest_ns == pytest.approx(expected)
    assert (difference.calls, difference.payload_bytes) == (-40, -40 * 2048)


def test_local_argmax_by_hand() -> None:
    difference = next(entry for entry in glm(simple(), 64).differences if entry.arm == "local-argmax")
    logits, pairs = 64 * 154880 * 2, 64 * 2 * 4 * 8
    assert known(difference.terms[COLLECTIVES]).fastest_ns == pytest.approx(
        -5 * (logits - pairs) * 7 / 8 / 100
    )
    assert known(difference.terms[COPY]).fastest_ns == pytest.approx(-5 * (1000 + 2 * logits / 1000))
    # one kernel over the vocabulary becomes three, of which one reads a shard of it
    assert known(difference.terms[ARGMAX]).fastest_ns == pytest.approx(5 * (2000 - logits * 7 / 8 / 1000))
    assert known(difference.terms[NORM]).fastest_ns == 0


def test_fusion_is_worth_the_norm_kernels_and_no_bytes() -> None:
    difference = next(
        entry for entry in glm(simple(), 64).differences if entry.arm == "allreduce-norm-fusion"
    )
    rows = 384 + 4 * 64
    assert known(difference.terms[COLLECTIVES]).fastest_ns == 0
    assert known(difference.terms[NORM]).fastest_ns == pytest.approx(-(5 * 1000 + 4 * rows * 6144 * 2 / 1000))


def test_a_share_of_the_step_where_one_is_given() -> None:
    workload = Workload(concurrency=1, draft_tokens=0, tp=4)
    (difference,) = predict(SUPER, workload, simple(), step_ns=4.64e6).differences
    assert difference.share is not None
    assert difference.share.fastest_ns == pytest.approx(known(difference.total).fastest_ns / 4.64e6)


def test_a_step_time_that_cannot_be_gives_no_shares_and_says_why() -> None:
    workload = Workload(concurrency=1, draft_tokens=0, tp=4)
    prediction = predict(SUPER, workload, simple(), step_ns=0.1e6)
    assert [difference.share for difference in prediction.differences] == [None]
    assert "collectives alone take 1.57 ms" in (prediction.contradiction or "")
    slow = [{**cost, "alpha_us": 100} for cost in SIMPLE["collective"]]
    wide = parse_profile({**SIMPLE, "collective": [*SIMPLE["collective"], *slow]}, "wide")
    less = predict(SUPER, workload, wide, step_ns=2e6)
    assert less.differences[0].share is None
    assert "commutative-reduce saves up to 4.08 ms" in (less.contradiction or "")
    assert predict(SUPER, workload, simple(), step_ns=4.64e6).contradiction is None


def test_kernels_that_a_profile_cannot_cost_are_unknown_and_never_zero() -> None:
    bare = parse_profile({"title": "links only", "collective": SIMPLE["collective"]}, "bare")
    prediction = predict(GLM, Workload(concurrency=64, draft_tokens=5, tp=8), bare, step_ns=1e9)
    whole = glm(simple(), 64)
    for difference, costed in zip(prediction.differences, whole.differences, strict=True):
        assert difference.terms[COLLECTIVES] == costed.terms[COLLECTIVES]
        changed = {name for name, term in costed.terms.items() if known(term).fastest_ns} - {COLLECTIVES}
        assert {name for name, term in difference.terms.items() if term is None} == changed
        assert (difference.total, difference.share) == (None, None)
        assert all(name in (difference.reason or "") for name in changed)
    assert any("memory bandwidth" in sentence for sentence in prediction.without)


def test_what_changes_no_kernel_is_known_without_them() -> None:
    bare = parse_profile({"title": "links only", "collective": SIMPLE["collective"]}, "bare")
    workload = Workload(concurrency=1, draft_tokens=0, tp=4)
    (difference,) = predict(SUPER, workload, bare).differences
    assert difference == predict(SUPER, workload, simple()).differences[0]
    assert difference.reason is None


def test_a_call_that_was_measured_at_another_size_only_has_no_time() -> None:
    costs = [{**cost, "beta_gb_s": None, "only_bytes": 1536} for cost in SIMPLE["collective"]]
    one_size = parse_profile({**SIMPLE, "collective": costs}, "one size")
    prediction = glm(one_size, 64)
    assert prediction.arms[0].terms[COLLECTIVES] is None
    assert "all_reduce: not known at this size" in prediction.arms[0].ways
    found = {difference.arm: difference for difference in prediction.differences}
    assert found["local-argmax"].terms[COLLECTIVES] is None
    assert known(found["allreduce-norm-fusion"].terms[COLLECTIVES]).fastest_ns == 0, "the same calls"


def test_a_link_without_figures_is_refused() -> None:
    with pytest.raises(UsageError, match="no figure for all_reduce"):
        predict(GLM, Workload(concurrency=1, draft_tokens=1, tp=8), simple(), link="scale-out")


def test_the_published_results() -> None:
    held = {entry.id: entry for entry in hold_against_published()}
    for name in ("Super, one all-reduce per latent layer", "Ultra, one all-reduce per latent layer"):
        entry = held[name]
        assert entry.verdict == "within the bracket"
        assert entry.predicted.slowest_ns < entry.published_ns < entry.predicted.fastest_ns < 0
    assert held["GLM-5.2 MTP at concurrency 1"].verdict.startswith("agrees")
    large = held["GLM-5.2 MTP at concurrency 64"]
    assert large.verdict == "explains 2% of it"
    assert any("11 GB/s" in line for line in large.would_explain)
    assert any("over the network" in line for line in large.would_explain)


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_costs_every_model_and_names_its_sources(name: str) -> None:
    profile = load_profile(name)
    assert all(cost.source for cost in profile.collective)
    for concurrency in (1, 64):
        prediction = glm(profile, concurrency)
        assert prediction.differences
        for arm in prediction.arms:
            assert all(0 <= known(term).fastest_ns <= known(term).slowest_ns for term in arm.terms.values())


@pytest.mark.parametrize(
    ("name", "kind", "ranks", "payload", "measured_us", "within"),
    [
        # Times that the sources of the figures print; the model need not be closer than its use.
        ("h100", "all_reduce", 6, 524288, 13, 0.1),
        ("h100", "all_reduce", 8, 64 * 2**20, 316, 0.15),
        ("gb300", "all_reduce", 8, 16384, 7, 0.15),
        ("gb300", "all_reduce", 4, 79.994 * 2**20, 209.26, 0.15),
        ("gb300", "all_reduce", 8, 63.998 * 2**20, 180.87, 0.15),
        ("b200", "all_reduce", 2, 524288, 13, 0.4),
        ("pcie5", "all_gather", 2, 2 * 32768 * 4096 * 2, 5648.88, 0.05),
    ],
)
def test_the_figures_give_back_what_they_were_fitted_to(
    name: str, kind: str, ranks: int, payload: float, measured_us: float, within: float
) -> None:
    costs = [cost for cost in load_profile(name).collective if cost.kind == kind and cost.link == "scale-up"]
    times = [time for cost in costs if (time := cost.time_ns(round(payload), ranks)) is not None]
    assert min(abs(time / 1000 / measured_us - 1) for time in times) <= within


def test_unknown_hardware_and_damaged_profiles() -> None:
    with pytest.raises(UsageError, match="choose from b200"):
        load_profile("abacus")
    with pytest.raises(InputError, match="source"):
        parse_profile({"title": "x", "memory_gb_s": {"value": 1}, "collective": []}, "x")


def test_fitting_a_line() -> None:
    assert fit_line([(0, 10.0, 1), (100, 20.0, 1), (200, 30.0, 5)]) == pytest.approx((10, 0.1))
    assert fit_line([(64, 7.0, 3)]) == (7, 0)
    assert fit_line([(0, 10.0, 1), (100, 5.0, 1)]) == (7.5, 0), "time cannot fall with size"
    alpha, slope = fit_line([(100, 1.0, 1), (200, 3.0, 1)])
    assert alpha == 0
    assert slope == pytest.approx(0.014)
