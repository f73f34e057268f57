"""What became of which collectives: no call counted twice, and the numbers add up to the difference."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from mtpprof.analyzers.compare.changes import Change, changes
from mtpprof.analyzers.compare.engagement import Engaged, engagement_by_change
from mtpprof.analyzers.measures.batches import Batch, Form, Pairing, Stratum, Sum, pair
from mtpprof.models.ledger import site_patterns

AR, AG = "all_reduce", "all_gather"


def form(
    kind: str = AR,
    shape: str = "8x256",
    site: str = "",
    fused: str = "",
    dtype: str = "bf16",
    by: str = "shm",
    phase: str = "target",
) -> Form:
    return Form(kind=kind, phase=phase, site=site, shape=shape, dtype=dtype, fused=fused, implementation=by)


def stratum(*forms: tuple[Form, int], rows: int = 8, pairs: int = 4, phase: str = "target") -> Stratum:
    return Stratum(
        batch=Batch(phase, rows, rows),
        steps=pairs // 2,
        pairs=pairs,
        forms={
            key: Sum(
                calls=count * pairs,
                payload_bytes=100 * count * pairs,
                wire_bytes=50 * count * pairs,
                time_ns=1000 * count * pairs,
            )
            for key, count in forms
            if count
        },
        rows=frozenset(range(pairs)),
        uneven=False,
    )


def changed(base: Stratum, arm: Stratum) -> list[Change]:
    return changes(Pairing(base=base, arm=arm))


def brief(found: Sequence[Change]) -> list[tuple[str, float, float]]:
    return [(change.what, change.calls, change.net_calls) for change in found]


def test_nothing_changed() -> None:
    same = stratum((form(), 3), (form(AG), 1))
    assert changed(same, same) == []


def test_a_narrow_reduce_is_removed() -> None:
    found = changed(stratum((form(), 7), (form(shape="8x128"), 3)), stratum((form(), 7)))
    assert brief(found) == [("removed", 3, -3)]
    assert found[0].payload_bytes == -300
    assert found[0].before is not None
    assert found[0].before.text == "[8, 128] bf16"


def test_gathered_logits_become_pairs() -> None:
    logits = form(AG, "4x512", "mtp.lm_head", phase="draft[0]")
    pairs = form(AG, "4x2", "mtp.lm_head", dtype="fp32", phase="draft[0]")
    target = form(AG, "16x512", "lm_head")
    found = changed(stratum((logits, 1), (target, 1)), stratum((pairs, 1), (target, 1)))
    assert brief(found) == [("replaced", 1, 0)]
    assert found[0].sites == ["mtp.lm_head"]


def test_fusion_and_its_reverse() -> None:
    plain, fused = form(site="a.moe.final"), form(site="a.moe.final", fused="residual_rmsnorm", by="fused")
    assert brief(changed(stratum((plain, 2)), stratum((fused, 2)))) == [("fused", 2, 0)]
    assert brief(changed(stratum((fused, 2)), stratum((plain, 2)))) == [("unfused", 2, 0)]


def test_partly_fused_leaves_the_others_alone() -> None:
    plain, fused = form(), form(fused="residual_rmsnorm")
    assert brief(changed(stratum((plain, 5)), stratum((plain, 2), (fused, 3)))) == [("fused", 3, 0)]


def test_the_same_call_from_elsewhere_is_moved_and_another_kernel_reimplements() -> None:
    found = changed(stratum((form(site="moe.shared"), 1)), stratum((form(site="moe.final"), 1)))
    assert brief(found) == [("moved", 1, 0)]
    found = changed(stratum((form(by="nccl"), 4)), stratum((form(by="multimem"), 4)))
    assert brief(found) == [("reimplemented", 4, 0)]


def test_where_batches_differ_sizes_do_not_count() -> None:
    base = stratum((form(shape="8x256"), 7), (form(shape="8x128"), 3), rows=8)
    arm = stratum((form(shape="80x256"), 7), rows=80)
    found = changed(base, arm)
    assert brief(found) == [("removed", 3, -3)]
    assert found[0].payload_bytes is None
    assert found[0].time_ns is None


def test_batches_that_are_not_told_are_not_equal() -> None:
    base, arm = stratum((form(), 2), rows=-1), stratum((form(), 1), rows=-1)
    ((pairing,), alone) = pair([base], [arm])
    assert alone == []
    assert not pairing.same_batch
    assert changed(base, arm)[0].payload_bytes is None


def test_unknown_sizes_match_known_ones() -> None:
    base, arm = stratum((form(shape="", dtype=""), 2)), stratum((form(fused="residual_rmsnorm"), 2))
    assert brief(changed(base, arm)) == [("fused", 2, 0)]


forms = st.builds(
    form,
    kind=st.sampled_from([AR, AG]),
    shape=st.sampled_from(["8x256", "8x128", "8x2", ""]),
    site=st.sampled_from(["", "a", "b"]),
    fused=st.sampled_from(["", "residual_rmsnorm"]),
    by=st.sampled_from(["x", "y"]),
)
strata = st.dictionaries(forms, st.integers(1, 5), max_size=6).map(lambda found: stratum(*found.items()))


@given(base=strata, arm=strata)
def test_net_calls_and_payload_add_up_to_the_difference(base: Stratum, arm: Stratum) -> None:
    found = changed(base, arm)
    calls = [sum(found.calls for found in side.forms.values()) / 4 for side in (base, arm)]
    assert sum(change.net_calls for change in found) == calls[1] - calls[0]
    payload = [change.payload_bytes for change in found]
    assert sum(value for value in payload if value is not None) == 100 * (calls[1] - calls[0])
    assert all(change.calls > 0 for change in found)


@given(base=strata, arm=strata)
def test_every_call_is_matched_once(base: Stratum, arm: Stratum) -> None:
    found = changed(base, arm)
    touched = sum(change.calls for change in found if change.before is not None)
    assert touched <= sum(found.calls for found in base.forms.values()) / 4


def test_pairing_takes_equal_batches_first_and_names_what_is_left() -> None:
    base = [stratum((form(), 1), rows=8), stratum((form(), 1), rows=3), stratum((form(), 1), phase="prefill")]
    arm = [stratum((form(), 1), rows=8), stratum((form(), 1), rows=7)]
    pairs, alone = pair(base, arm)
    assert [(one.base.batch.rows, one.arm.batch.rows, one.same_batch) for one in pairs] == [
        (8, 8, True),
        (3, 7, False),
    ]
    assert alone == ["2 steps of phase prefill: the second capture has none, so they are not compared"]


def test_equal_batches_of_sides_that_differ_otherwise_keep_their_batch_and_compare_calls() -> None:
    base, arm = stratum((form(shape="8x256"), 7), rows=8), stratum((form(shape="8x128"), 7), rows=8)
    ((pairing,), alone) = pair([base], [arm], alike=False)
    assert (pairing.base.batch, pairing.same_batch, alone) == (pairing.arm.batch, False, [])
    assert changes(pairing) == []


def test_sites_of_layers_are_one_pattern() -> None:
    sites = ["layers.3.moe.final", "layers.5.moe.final", "mtp.layers.0.moe.final", "embed"]
    assert site_patterns(sites) == ["embed", "layers.*.moe.final", "mtp.layers.0.moe.final"]


def verdict(base: Stratum, arm: Stratum, name: str) -> str:
    pairing = Pairing(base=base, arm=arm)
    found = engagement_by_change(pairing, changes(pairing), name)
    assert found is not None
    return found.verdict


def test_proofs_by_change_of_the_optimizations() -> None:
    off, on = stratum((form(), 7), (form(shape="8x128"), 3)), stratum((form(), 7))
    assert verdict(off, on, "commutative-reduce") == Engaged.ENGAGED
    assert verdict(on, on, "commutative-reduce") == Engaged.UNKNOWN
    assert verdict(off, off, "commutative-reduce") == Engaged.UNKNOWN, "a narrow reduce may be any"
    partly = stratum((form(), 7), (form(shape="8x128"), 1))
    assert verdict(off, partly, "commutative-reduce") == Engaged.PARTLY
    assert verdict(off, on, "local-argmax") == Engaged.UNKNOWN
    logits, pairs = stratum((form(AG, "4x512"), 3)), stratum((form(AG, "4x2", dtype="fp32"), 3))
    assert verdict(logits, pairs, "local-argmax") == Engaged.ENGAGED
    assert verdict(
        stratum((form(), 2)), stratum((form(fused="residual_rmsnorm"), 2)), "allreduce-norm-fusion"
    ) == (Engaged.ENGAGED)


def test_a_wider_reduce_that_is_gone_is_not_the_latent_one() -> None:
    off, on = stratum((form(), 7), (form(shape="8x512"), 3)), stratum((form(), 7))
    assert verdict(off, on, "commutative-reduce") == Engaged.UNKNOWN
