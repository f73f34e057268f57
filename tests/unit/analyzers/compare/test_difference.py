"""Comparisons end to end: made runs with known savings, real captures, and what must be refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from mtpprof.analyzers.answers.run_report import CaseReport, Report, make_report
from mtpprof.analyzers.calls.attribution import ReadOptions
from mtpprof.analyzers.compare.difference import Difference, engagement_of_side
from mtpprof.analyzers.compare.side import run_side
from mtpprof.analyzers.compare.targets import Comparison, compare_targets, parse_target
from mtpprof.analyzers.compare.waterfall import Waterfall
from mtpprof.analyzers.numeric.stats import Claim
from mtpprof.cli.render.savings import claim_notes, engagement_notes, noise_text, verdict_text
from mtpprof.cli.render.units import percent_text
from mtpprof.errors import InputError, UsageError
from mtpprof.models.hf import resolve_model
from mtpprof.models.spec import Scale
from mtpprof.rundir.directory import RunDirectory
from tests.runs import STEP_NS, Ledger, Recipe, write_run
from tests.traces import needs_traces, trace_folder

TINY = Path(__file__).parents[3] / "data" / "configs" / "nemotron-h-tiny"
SPEED = {"local-argmax": 0.95, "all-on": 0.95, "commutative-reduce": 0.9}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    recipe = Recipe(speed=lambda arm: SPEED.get(arm, 1.0))
    return write_run(tmp_path_factory.mktemp("run") / "made", recipe)


@pytest.fixture(scope="module")
def report(made: RunDirectory) -> Report:
    return make_report(made)


def difference(case: CaseReport, arm: str) -> Difference:
    return next(entry for entry in case.differences if entry.arm == arm)


def adds_up(fall: Waterfall | None) -> None:
    assert fall is not None
    assert fall.start_ns + sum(part.delta_ns for part in fall.parts) + fall.rest_ns == fall.end_ns


def test_known_savings_are_found_and_nothing_else(report: Report) -> None:
    deepseek, nemotron = report.cases
    claims = {entry.arm: entry.step.claim for entry in (*deepseek.differences, *nemotron.differences)}
    assert claims == {
        "allreduce-norm-fusion": Claim.WITHIN_NOISE,
        "local-argmax": Claim.SAVED,
        "all-on": Claim.SAVED,
        "commutative-reduce": Claim.SAVED,
    }
    relative = difference(nemotron, "commutative-reduce").step.relative
    assert relative == pytest.approx(-0.1, abs=0.005)


def test_the_two_by_two_tells_fusion_and_argmax_apart(report: Report) -> None:
    effects = {"x".join(effect.optimizations): effect for effect in report.cases[0].effects}
    assert effects["local-argmax"].claim == Claim.SAVED
    assert effects["allreduce-norm-fusion"].claim == Claim.WITHIN_NOISE
    argmax = effects["local-argmax"].step
    assert argmax is not None
    assert argmax.estimate == pytest.approx(-0.05 * STEP_NS * 1.06, rel=0.03)


def test_every_waterfall_adds_up(report: Report) -> None:
    for case in report.cases:
        for entry in case.differences:
            adds_up(entry.waterfall)
            adds_up(entry.waterfall_per_token)
            assert entry.waterfall is not None
            assert entry.waterfall.difference_ns == entry.step.difference_ns == entry.step_ns


def test_calls_and_bytes_are_those_of_the_ledger(report: Report) -> None:
    deepseek, nemotron = report.cases
    argmax = difference(deepseek, "local-argmax")
    assert (argmax.calls, argmax.payload_bytes) == (0, -3 * (2 * 1024 * 2 - 2 * 2 * 4 * 2))
    assert [(change.what, change.calls) for change in argmax.changes] == [("replaced", 1)] * 3
    latent = difference(nemotron, "commutative-reduce")
    assert latent.calls == -3
    assert {change.what for change in latent.changes} == {"removed", "moved"}
    baseline = nemotron.arms[0]
    assert [entry.sentence for entry in baseline.excess] == [
        "3 redundant all-reduces of [2, 64] bf16 per step, one per latent MoE layer"
    ]
    assert all(arm.as_expected for case in report.cases for arm in case.arms if arm.repeats is None)


def test_ranks_and_their_waits(report: Report) -> None:
    first, second = report.cases[0].arms[0].ranks
    assert (first.rank, second.rank) == (0, 1)
    assert first.parts_ns["wait"] == 0
    assert second.parts_ns["wait"] > 0, "rank 0 comes late to every second collective"
    assert sum(first.parts_ns.values()) == pytest.approx(first.step_ns)


def test_acceptance_and_throughput(report: Report) -> None:
    arm = report.cases[0].arms[0]
    assert arm.throughput is not None
    assert arm.acceptance is not None
    assert arm.throughput.tokens_per_s == pytest.approx(arm.throughput.per_acceptance * arm.acceptance.mean)
    assert arm.step is not None
    assert arm.throughput.per_acceptance == pytest.approx(2 / (arm.step.mean_ns / 1e9))


def test_only_a_a_arms_claim_nothing(tmp_path: Path) -> None:
    for seed in range(20):
        recipe = Recipe(models=("nemotron-3-super",), seed=seed, noise=0.05, profile_steps=1)
        (case,) = make_report(write_run(tmp_path / str(seed), recipe)).cases
        assert [entry.step.claim for entry in case.differences] == [Claim.WITHIN_NOISE], seed


def test_unfinished_runs_say_what_is_missing(tmp_path: Path) -> None:
    recipe = Recipe(models=("nemotron-3-super",), rounds=1, status="interrupted")
    directory = write_run(tmp_path / "run", recipe)
    (case,) = directory.run().cases
    directory.trace(case.id, "commutative-reduce", 1).unlink()
    report = make_report(directory)
    (entry,) = report.cases[0].differences
    assert entry.step.claim == Claim.UNKNOWN
    assert entry.waterfall is None
    assert "rank 1" in entry.no_waterfall
    assert (entry.calls, entry.payload_bytes) == (None, None)
    assert any("rank 1" in caveat for caveat in entry.caveats)
    assert any("interrupted" in note for note in report.notes)


def test_a_mismatch_with_the_ledger_is_shown(tmp_path: Path) -> None:
    recipe = Recipe(models=("nemotron-3-super",), seen=lambda arm, ledger: ledger[1:])
    report = make_report(write_run(tmp_path / "run", recipe))
    assert not report.as_expected
    mismatch = report.cases[0].arms[0].mismatches[0]
    assert (mismatch.site, mismatch.expected, mismatch.observed) == ("embed", 1, 0)


def test_cores_shared_by_ranks_are_a_caveat(tmp_path: Path) -> None:
    recipe = Recipe(models=("nemotron-3-super",), cpus=1, speed=lambda arm: SPEED.get(arm, 1.0))
    (case,) = make_report(write_run(tmp_path / "run", recipe)).cases
    (entry,) = case.differences
    assert entry.step.claim == Claim.SAVED
    assert entry.step.shared_cores
    assert any("share CPU cores" in caveat for caveat in entry.caveats)


def compared(first: str, second: str) -> list[Comparison]:
    return compare_targets(parse_target(first), parse_target(second)).comparisons


def test_two_arms_of_a_run_in_every_case_that_has_them(made: RunDirectory) -> None:
    (only,) = compared(f"{made.root}:baseline", f"{made.root}:local-argmax")
    assert only.title == "deepseek-v3.2-tiny-tp2-c2-k3-bf16"
    assert only.difference.step.claim == Claim.SAVED
    assert [entry.what for entry in only.base.excess] == ["oversized"]
    assert only.arm.excess == []


def test_two_runs_arm_by_arm_are_not_paired_by_round(made: RunDirectory, tmp_path: Path) -> None:
    again = write_run(tmp_path / "again", Recipe(seed=5, name="again"))
    found = compared(str(made.root), str(again.root))
    assert len(found) == 6
    assert all("different runs" in entry.difference.step.reason for entry in found)
    assert all(entry.difference.calls == 0 for entry in found)
    assert all(entry.difference.output is None for entry in found), "other seeds, other tokens"


def test_settings_that_differ_take_away_bytes_and_claims(made: RunDirectory, tmp_path: Path) -> None:
    recipe = Recipe(models=("deepseek-v3.2",), concurrency=(4,), name="large")
    other = write_run(tmp_path / "other", recipe)
    (only,) = compared(f"{made.root}:deepseek-v3.2-tiny-tp2-c2-k3-bf16/baseline", f"{other.root}:baseline")
    entry = only.difference
    assert entry.step.claim == Claim.UNKNOWN
    assert "concurrency" in entry.step.reason
    assert (entry.calls, entry.payload_bytes) == (0, None)
    assert any("concurrency: 2 against 4" in caveat for caveat in entry.caveats)


def test_sides_of_another_tp_keep_their_batches(tmp_path: Path) -> None:
    """Their steps are of one batch; it is the number of ranks for which sizes and times do not compare."""
    few, many = (
        write_run(
            tmp_path / f"tp{tp}",
            Recipe(
                models=("nemotron-3-super",),
                tp=tp,
                concurrency=(1,),
                noise=noise,
                name=f"tp{tp}",
                speed=speed,
            ),
        )
        for tp, noise, speed in ((2, 0.002, lambda arm: 1.0), (4, 0.02, lambda arm: 2.0))
    )
    (only,) = compared(f"{few.root}:baseline", f"{many.root}:baseline")
    entry = only.difference
    (stratum,) = entry.strata
    assert stratum.batch == stratum.arm_batch == "steps, 1 row of 1 sequence"
    assert not stratum.same_batch
    assert (entry.calls, entry.payload_bytes, entry.waterfall) == (0, None, None)
    assert entry.no_waterfall == "the sides differ in TP"
    assert (
        "steps, 1 row of 1 sequence: the sides differ in TP: numbers of calls compare, bytes and times do not."
        in entry.caveats
    )
    assert not any("Batches differ" in caveat for caveat in entry.caveats)
    noise = entry.step.noise
    assert noise is not None
    assert not entry.step.paired
    assert noise.level == pytest.approx(entry.step.arm_ns), (
        "the floor and the step are those of the noisier run"
    )
    share = percent_text(noise.detectable / noise.level)
    assert noise_text(noise, paired=False).startswith("A/A of the noisier run: two visits")
    assert f"({share} of a step)" in noise_text(noise, paired=False)


def test_the_floor_is_a_part_of_the_step_that_was_repeated(made: RunDirectory) -> None:
    (only,) = compared(f"{made.root}:commutative-reduce", f"{made.root}:baseline")
    noise = only.difference.step.noise
    assert noise is not None
    assert noise.level == pytest.approx(only.difference.step.arm_ns)


def test_a_change_of_acceptance_is_named(made: RunDirectory, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", Recipe(seed=9, name="other", steps=40))
    (first, *_) = compared(f"{made.root}:baseline", f"{other.root}:baseline")
    assert any("Acceptance lengths differ" in caveat for caveat in first.difference.caveats)


def test_tokens_that_differ_are_found(tmp_path: Path) -> None:
    def changed(arm: str, tokens: list[int]) -> list[int]:
        return [*tokens[:3], 1001, *tokens[4:]] if arm == "commutative-reduce" else tokens

    recipe = Recipe(models=("nemotron-3-super",), tokens=changed)
    (case,) = make_report(write_run(tmp_path / "run", recipe)).cases
    output = case.differences[0].output
    assert output is not None
    assert not output.same
    assert output.first_difference == (0, 3)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ("{run}", "{run}", "compared with itself"),
        ("{run}:nothing", "{run}:baseline", "no arm of the same case"),
        ("{run}:nocase/baseline", "{run}:baseline", "has no case 'nocase'"),
        ("{run}:baseline", "{run}", None),
        ("{traces}:baseline", "{run}", "not a run directory"),
        ("{run}", "{traces}", "name the one arm"),
    ],
)
def test_names_that_say_too_little(
    made: RunDirectory, tmp_path: Path, first: str, second: str, reason: str | None
) -> None:
    case = made.run().cases[0].id
    words = {"run": made.root, "traces": made.arm(case, "baseline")}
    if reason is None:
        assert compared(first.format(**words), second.format(**words))
        return
    with pytest.raises(UsageError, match=reason):
        compared(first.format(**words), second.format(**words))


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        parse_target(str(tmp_path / "nowhere"))


def test_an_arm_against_a_capture(made: RunDirectory) -> None:
    case = made.run().cases[1].id
    (only,) = compared(f"{made.root}:{case}/baseline", str(made.arm(case, "commutative-reduce")))
    assert only.difference.calls == -3
    assert only.difference.step.claim == Claim.UNKNOWN


def test_swapped_sides_swap_the_signs(made: RunDirectory) -> None:
    (forth,) = compared(f"{made.root}:baseline", f"{made.root}:commutative-reduce")
    (back,) = compared(f"{made.root}:commutative-reduce", f"{made.root}:baseline")
    assert forth.difference.calls == -3
    assert back.difference.calls == 3
    assert back.difference.step.claim == Claim.SLOWER
    assert {change.what for change in back.difference.changes} == {"added", "moved"}


@needs_traces
def test_the_real_pair_of_latent_reduces() -> None:
    folder = trace_folder("vllm-cpu-tp4-nemotron")
    spec = resolve_model(str(TINY), scale=Scale.FULL)
    for model in (None, spec):
        (only,) = compare_targets(
            parse_target(str(folder / "latent-reduce-on")),
            parse_target(str(folder / "latent-reduce-skipped")),
            ReadOptions(model=model),
        ).comparisons
        entry = only.difference
        assert (entry.calls, entry.payload_bytes, entry.wire_bytes) == (-3, -6144, -9216)
        assert (only.capture_calls, only.capture_steps) == (-51, 17)
        assert entry.engagement["commutative-reduce"].verdict == "ENGAGED"
        assert entry.engagement["local-argmax"].verdict == "UNKNOWN"
        (change,) = [change for change in entry.changes if change.what != "moved"]
        assert (change.what, change.calls) == ("removed", 3)
        assert change.before is not None
        assert change.before.text == "[8, 128] bf16"
        assert entry.step.claim == Claim.UNKNOWN
        adds_up(entry.waterfall)
        assert {stratum.arm.calls - stratum.base.calls for stratum in entry.strata} == {-3}
    assert only.base.ledger["target, 8 rows of 8 sequences"] == []
    assert only.arm.ledger["target, 8 rows of 8 sequences"] == ["commutative-reduce"]


@needs_traces
def test_the_real_pair_of_fused_and_plain_all_reduces() -> None:
    (only,) = compared(
        str(trace_folder("sglang-tp4-gb300-nccl")), str(trace_folder("sglang-tp4-gb300-fused"))
    )
    entry = only.difference
    decode = entry.strata[0]
    assert not decode.same_batch
    fused = next(change for change in decode.changes if change.what == "fused")
    assert fused.calls == 95
    assert fused.after is not None
    assert fused.after.fused == "residual_rmsnorm"
    norms = next(count for count in decode.kernels if count.part == "norm")
    assert (norms.base, norms.arm) == (97, 2)
    assert entry.kernels is not None
    assert entry.kernels.what == "kernels"
    assert (round(entry.kernels.base), round(entry.kernels.arm)) == (656, 569)
    assert entry.engagement["allreduce-norm-fusion"].verdict == "ENGAGED"
    assert (entry.payload_bytes, entry.step_ns, entry.waterfall) == (None, None, None)
    assert entry.step.claim == Claim.UNKNOWN
    assert any("16 rows" in caveat and "times do not" in caveat for caveat in entry.caveats)


def test_traces_that_show_less_than_asked_are_not_engaged(tmp_path: Path) -> None:
    seen: dict[str, Ledger] = {}

    def silent(arm: str, ledger: Ledger) -> Ledger:
        return seen.setdefault("first", ledger)

    recipe = replace(Recipe(models=("nemotron-3-super",)), seen=silent)
    (case,) = make_report(write_run(tmp_path / "run", recipe)).cases
    engagement = case.differences[0].engagement["commutative-reduce"]
    assert (engagement.requested, engagement.verdict) == (True, "NOT ENGAGED")


def unfused(arm: str, ledger: Ledger) -> Ledger:
    return tuple(replace(entry, fused="") for entry in ledger)


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A fusion that never engages, in arms that are faster all the same; the argmax engages and saves."""
    speed = {"allreduce-norm-fusion": 0.6, "local-argmax": 0.9, "all-on": 0.9}
    recipe = Recipe(models=("deepseek-v3.2",), seen=unfused, cpus=1, speed=lambda arm: speed.get(arm, 1.0))
    return write_run(tmp_path_factory.mktemp("run") / "idle", recipe)


def test_no_saving_is_claimed_for_what_did_not_engage(idle: RunDirectory) -> None:
    (case,) = make_report(idle).cases
    entry = difference(case, "allreduce-norm-fusion")
    assert entry.engagement["allreduce-norm-fusion"].verdict == "NOT ENGAGED"
    assert (entry.step.claim, verdict_text(entry.step)) == (Claim.DIFFERS, "differs, not engaged")
    assert entry.step.difference is not None, "the difference is shown with its interval"
    assert entry.step.difference.excludes_zero
    assert list(claim_notes(entry)) == [
        "allreduce-norm-fusion: no claim on time: nothing that was switched engaged, so the difference comes from something else."
    ]
    assert list(engagement_notes(entry)) == [
        "allreduce-norm-fusion NOT ENGAGED: 0 of 18 calls have its form."
    ]
    both = difference(case, "all-on")
    assert both.step.claim == Claim.SAVED
    (sentence,) = claim_notes(both)
    assert sentence.endswith("; local-argmax engaged, allreduce-norm-fusion did not engage.")
    assert list(claim_notes(difference(case, "local-argmax"))) == []
    effects = {"x".join(effect.optimizations): effect.claim for effect in case.effects}
    assert (
        effects["allreduce-norm-fusion"] == effects["allreduce-norm-fusionxlocal-argmax"] == Claim.NOT_ENGAGED
    )
    assert effects["local-argmax"] == Claim.UNKNOWN, "the times of arms that are the same differ"


def test_what_did_not_engage_claims_nothing_from_the_other_side_either(idle: RunDirectory) -> None:
    (only,) = compared(f"{idle.root}:allreduce-norm-fusion", f"{idle.root}:baseline")
    assert only.difference.step.claim == Claim.DIFFERS
    (only,) = compared(f"{idle.root}:all-on", f"{idle.root}:allreduce-norm-fusion")
    assert only.difference.step.claim == Claim.SAVED, "the argmax was switched off"


def test_collectives_that_changed_all_the_same_are_what_a_claim_is_of(tmp_path: Path) -> None:
    def fewer(arm: str, ledger: Ledger) -> Ledger:
        return unfused(arm, ledger)[1:] if arm == "allreduce-norm-fusion" else unfused(arm, ledger)

    recipe = Recipe(
        models=("deepseek-v3.2",),
        seen=fewer,
        speed=lambda arm: 0.9 if arm == "allreduce-norm-fusion" else 1.0,
    )
    (case,) = make_report(write_run(tmp_path / "run", recipe)).cases
    entry = difference(case, "allreduce-norm-fusion")
    assert entry.calls == -1
    assert entry.step.reason.endswith("; allreduce-norm-fusion did not engage")


def test_a_claim_without_traces_says_that_engagement_is_not_known(tmp_path: Path) -> None:
    directory = write_run(
        tmp_path / "run", Recipe(models=("nemotron-3-super",), speed=lambda arm: SPEED.get(arm, 1.0))
    )
    (case,) = directory.run().cases
    directory.trace(case.id, "commutative-reduce", 0).unlink()
    (entry,) = make_report(directory).cases[0].differences
    assert entry.step.claim == Claim.SAVED
    assert entry.step.reason.endswith("; commutative-reduce not known to have engaged")


def test_what_the_engine_cannot_switch_is_unsupported(made: RunDirectory) -> None:
    run = made.run()
    case = run.cases[1]
    reason = "UNSUPPORTED: the installed version has no such function"
    refused = msgspec.structs.replace(
        case, not_applicable={"commutative-reduce": reason, "local-argmax": "no drafts"}
    )
    side = run_side(made, run, refused, refused.arms[0])
    found = engagement_of_side(side)
    assert found["commutative-reduce"].verdict == "UNSUPPORTED"
    assert found["commutative-reduce"].reason == "the installed version has no such function"
    assert found["local-argmax"].verdict == "NOT APPLICABLE"


def test_a_fused_kernel_with_a_size_limit_is_partly_engaged_and_says_where(tmp_path: Path) -> None:
    def limited(arm: str, ledger: Ledger) -> Ledger:
        return tuple(replace(entry, fused="") if entry.shape[0] > 2 else entry for entry in ledger)

    recipe = Recipe(models=("deepseek-v3.2",), seen=limited)
    (case,) = make_report(write_run(tmp_path / "run", recipe)).cases
    entry = difference(case, "allreduce-norm-fusion")
    engagement = entry.engagement["allreduce-norm-fusion"]
    assert engagement.verdict == "PARTLY"
    assert [(size.rows, size.engaged_calls, size.opportunities) for size in engagement.by_rows] == [
        (2, 12, 12),
        (8, 0, 6),
    ]
    (note,) = engagement_notes(entry)
    assert note == ("allreduce-norm-fusion PARTLY: 12 of 12 calls at 2 rows, 0 of 6 calls at 8 rows.")


@needs_traces
def test_a_folder_of_several_runs_is_refused() -> None:
    folder = str(trace_folder("vllm-cpu-tp4-nemotron"))
    with pytest.raises(InputError, match="several runs"):
        compared(folder, folder)
