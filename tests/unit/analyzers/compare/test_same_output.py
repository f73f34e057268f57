"""Token agreement, divergence, acceptance length, and weak evidence."""

from __future__ import annotations

import math

import pytest

from mtpprof.analyzers.compare.same_output import acceptance, relative_distance, same_output
from mtpprof.rundir.records import OutputsRecord, RoundOutputs

VARIED = list(range(100, 120))


def _outputs(*rounds: tuple[list[list[int]], list[list[int]]]) -> OutputsRecord:
    return OutputsRecord(
        schema_version=1,
        rounds=[
            RoundOutputs(round=index, tokens=tokens, accepted=accepted)
            for index, (tokens, accepted) in enumerate(rounds)
        ],
    )


def test_equal_tokens_agree_as_far_as_both_go() -> None:
    same = same_output(_outputs(([VARIED[:15]], [])), _outputs(([VARIED], [])))
    assert same is not None
    assert (same.same, same.tokens, same.agreeing, same.diverging, same.weak) == (True, 15, 15, 0, None)


def test_what_follows_the_first_difference_is_not_counted() -> None:
    changed = [*VARIED[:5], 7, *VARIED[6:]]
    same = same_output(_outputs(([VARIED, changed], [])), _outputs(([VARIED, VARIED], [])))
    assert same is not None
    assert not same.same
    assert (same.tokens, same.agreeing, same.sequences, same.diverging) == (26, 25, 2, 1)
    assert same.first_difference == (1, 5)
    assert (same.divergences[0].token, same.divergences[0].reference) == (7, 105)


def test_rounds_that_repeat_are_one_observation() -> None:
    same = same_output(_outputs(*[([VARIED], [])] * 3), _outputs(([VARIED], [])))
    assert same is not None
    assert same.sequences == 1


def test_output_that_hardly_varies_proves_little() -> None:
    stuck = [983, 12] * 20
    same = same_output(_outputs(([stuck], [])), _outputs(([stuck], [])))
    assert same is not None
    assert same.same
    assert same.weak is not None
    assert same.sentence == "tokens match, but this is weak evidence: only 2 distinct tokens were generated"


def test_nothing_to_compare_is_not_sameness() -> None:
    assert same_output(None, _outputs(([VARIED], []))) is None
    empty = same_output(_outputs(([[]], [])), _outputs(([VARIED], [])))
    assert empty is not None
    assert not empty.same
    assert empty.weak == "no tokens were compared"


def test_acceptance_over_sequences_and_over_steps() -> None:
    few = acceptance(_outputs(([[1]], [[2], [4], [1], [1]])))
    assert few is not None
    assert few.mean == 2
    assert few.low is not None
    assert few.high is not None
    assert few.low < 2 < few.high
    assert "over steps" in few.method
    many = acceptance(_outputs(([[1]] * 6, [[1, 2, 3, 1, 2, 3]] * 4)))
    assert many is not None
    assert (many.mean, many.sequences, many.observations) == (2, 6, 24)
    assert "over sequences" in many.method


def test_acceptance_of_nothing_is_unknown() -> None:
    assert acceptance(None) is None
    assert acceptance(_outputs(([[]], []))) is None
    single = acceptance(_outputs(([[1]], [[3]])))
    assert single is not None
    assert (single.mean, single.low, single.confidence) == (3, None, None)


def test_distance_of_block_outputs() -> None:
    assert relative_distance([3.0, 4.0], [3.0, 4.0]) == 0
    assert relative_distance([3.0, 4.5], [3.0, 4.0]) == pytest.approx(0.1)
    assert relative_distance([1.0], [0.0]) == math.inf
    assert relative_distance([0.0], [0.0]) == 0
    assert relative_distance([1.0], [1.0, 2.0]) is None


def _probed(*probes: list[list[float]]) -> OutputsRecord:
    return OutputsRecord(
        schema_version=1,
        rounds=[
            RoundOutputs(round=index, tokens=[VARIED], accepted=[], probe=probe)
            for index, probe in enumerate(probes)
        ],
    )


def test_equal_tokens_of_another_function_are_not_the_same_output() -> None:
    reference = _probed([[-4.0, -3.0], [-5.0]])
    rounding = same_output(_probed([[-4.01, -3.0], [-5.0]]), reference)
    assert rounding is not None
    assert rounding.same
    assert rounding.within_rounding
    assert rounding.distance == pytest.approx(0.01 / math.sqrt(50))
    other = same_output(_probed([[-4.0, -3.0], [-5.0]], [[-4.5, -3.0], [-5.0]]), reference)
    assert other is not None
    assert not other.same
    assert (other.diverging, other.within_rounding) == (0, False)


@pytest.mark.parametrize(
    ("change", "probe", "dtype", "sentence"),
    [
        ({}, -4.0, "bf16", "same tokens"),
        (
            {5: 7},
            -4.002,
            "bf16",
            "1 of 1 sequences differs, first at token 5 of sequence 0, a near tie: log-probabilities of the same input differ "
            "by 0.04 %, which is rounding, expected in bf16",
        ),
        (
            {5: 7},
            -4.002,
            "fp32",
            "the arms do not compute the same: log-probabilities of the same input differ by 0.04 %, more than rounding does "
            "in fp32",
        ),
        (
            {},
            -5.0,
            "bf16",
            "the arms do not compute the same: log-probabilities of the same input differ by 20 %, more than rounding does in "
            "bf16",
        ),
        (
            {5: 7},
            None,
            "bf16",
            "1 of 1 sequences differs, first at token 5 of sequence 0; log-probabilities were not measured, so rounding or an "
            "error may be the cause",
        ),
    ],
)
def test_the_sentence_says_what_a_difference_means(
    change: dict[int, int], probe: float | None, dtype: str, sentence: str
) -> None:
    tokens = [change.get(index, token) for index, token in enumerate(VARIED)]
    mine, reference = (
        OutputsRecord(
            schema_version=1,
            rounds=[
                RoundOutputs(
                    round=0, tokens=[row], accepted=[], probe=[] if probe is None else [[value, -3.0]]
                )
            ],
        )
        for row, value in ((tokens, probe or 0.0), (VARIED, -4.0))
    )
    found = same_output(mine, reference, dtype)
    assert found is not None
    assert found.sentence == sentence


def test_a_probe_that_was_not_measured_says_nothing() -> None:
    for mine, theirs in ((_probed([]), _probed([[-1.0]])), (_probed([[-1.0]]), _probed([]))):
        found = same_output(mine, theirs)
        assert found is not None
        assert found.same
        assert (found.distance, found.within_rounding) == (None, None)


def test_probes_of_other_prompts_are_not_compared() -> None:
    found = same_output(_probed([[-1.0, -2.0]]), _probed([[-1.0]]))
    assert found is not None
    assert found.distance is None
