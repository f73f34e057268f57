"""Speculation is lossless, rollback exact, and no arm or TP size changes a token."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from mtpprof.errors import UsageError
from mtpprof.models.reference.block import Rows
from mtpprof.models.reference.collectives.comm import Communicator
from mtpprof.models.reference.speculative import DecodeSession, acceptance_rate, prompt_logprobs
from tests.unit.models.reference.cases import (
    ALL,
    PROMPT_LEN,
    SEQUENCES,
    STRUCTURES,
    VOCAB,
    all_arms,
    build,
    default_draft_tokens,
    prompts,
    rows_at,
    tiny,
)
from tests.unit.models.reference.thread_ranks import run_ranks, solo

Tokens = list[list[int]]


def decode(session: DecodeSession, steps: int) -> tuple[Tokens, list[int]]:
    """Generated tokens of each sequence, and accepted drafts of each step of each sequence."""
    tokens = [[token] for token in session.prefill()]
    accepted: list[int] = []
    for _ in range(steps):
        result = session.step()
        accepted += result.accepted
        for sequence, new, count in zip(tokens, result.tokens, result.accepted, strict=True):
            assert len(new) == count + 1
            sequence += new
    return tokens, accepted


def agree(one: Tokens, other: Tokens) -> bool:
    """Whether the tokens are the same as far as both go."""
    return all(a[: len(b)] == b[: len(a)] for a, b in zip(one, other, strict=True))


def plain(name: str, steps: int, dtype: torch.dtype = torch.float64, vocab: int = VOCAB) -> Tokens:
    """Plain decoding on one rank: what every other way must give."""
    session = DecodeSession(
        build(tiny(name, vocab), solo(), dtype), prompts(vocab), draft_tokens=0, max_steps=steps
    )
    return decode(session, steps)[0]


class OracleSession(DecodeSession):
    """Drafts are the true continuation, each spoilt with chance 0.3: many acceptances of every length."""

    truth: Tokens
    spoil: torch.Generator

    def prefill(self) -> list[int]:
        self.spoil = torch.Generator().manual_seed(8)
        first = super().prefill()
        with torch.inference_mode():
            self._drafts = self._continuation(self._lengths)
        return first

    def _propose(self, following: Tensor, hidden: Tensor, rows: Rows, accepted: Tensor) -> Tensor:
        super()._propose(following, hidden, rows, accepted)
        return self._continuation(self._lengths + accepted + 1)

    def _continuation(self, lengths: Tensor) -> Tensor:
        k = self.draft_tokens
        starts = (lengths - PROMPT_LEN + 1).tolist()
        drafts = torch.tensor([seq[start : start + k] for seq, start in zip(self.truth, starts, strict=True)])
        spoilt = torch.rand(drafts.shape, generator=self.spoil) < 0.3
        return torch.where(spoilt, (drafts + 1) % self.model.spec.vocab_size, drafts)


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("draft_tokens", [1, 2, 4])
def test_greedy_speculation_is_lossless(name: str, draft_tokens: int) -> None:
    steps = 24
    truth = plain(name, steps * 2)
    session = DecodeSession(build(tiny(name), solo()), prompts(), draft_tokens=draft_tokens, max_steps=steps)
    tokens, accepted = decode(session, steps)
    assert agree(tokens, truth)
    assert 0 < sum(accepted) < len(accepted) * draft_tokens, "the draft module agrees sometimes"


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_rollback_after_any_number_of_accepted_drafts(name: str, ranks: int) -> None:
    k, steps = 3, 20
    truth = plain(name, steps * (k + 1) + k + 1)

    def run(comm: Communicator) -> tuple[Tokens, list[int]]:
        session = OracleSession(build(tiny(name), comm), prompts(), draft_tokens=k, max_steps=steps)
        session.truth = truth
        return decode(session, steps)

    for tokens, accepted in run_ranks(ranks, run):
        assert set(accepted) == {0, 1, 2, 3}
        assert agree(tokens, truth)


class DraftRecorder(DecodeSession):
    """Notes the drafts of each step, and how long each sequence was then."""

    seen: list[tuple[list[int], Tensor]]

    def _propose(self, following: Tensor, hidden: Tensor, rows: Rows, accepted: Tensor) -> Tensor:
        drafts = super()._propose(following, hidden, rows, accepted)
        self.seen.append(((self._lengths + accepted + 1).tolist(), drafts))
        return drafts


@pytest.mark.parametrize("name", STRUCTURES)
def test_drafts_are_what_the_draft_module_says_of_the_whole_sequence(name: str) -> None:
    """Recomputed from the sequence alone: positions 0 to n - 1 at once, then one at a time on its own drafts."""
    k, steps = 3, 5
    model = build(tiny(name), solo())
    assert model.draft is not None
    session = DraftRecorder(model, prompts(), draft_tokens=k, max_steps=steps)
    session.seen = []
    generated, _ = decode(session, steps)
    for lengths, drafts in session.seen:
        for index, length in enumerate(lengths):
            tokens = torch.tensor([*prompts()[index].tolist(), *generated[index]])[None, : length + 1]
            with torch.inference_mode():
                rows = rows_at(0, length, 1)
                hidden = model(tokens[:, :-1], rows, model.new_caches(1, length))
                caches = model.draft.new_caches(1, length + k)
                hidden = model.draft(tokens[:, 1:], hidden, rows, caches)[-1:]
                expected = [model.draft.next_tokens(hidden)]
                for further in range(k - 1):
                    hidden = model.draft(expected[-1], hidden, rows_at(length + further, 1, 1), caches)
                    expected.append(model.draft.next_tokens(hidden))
            assert drafts[index].tolist() == torch.cat(expected).tolist()


@pytest.mark.parametrize("name", ALL)
def test_steps_give_what_one_forward_pass_gives(name: str) -> None:
    spec = tiny(name)
    model = build(spec, solo())
    session = DecodeSession(model, prompts(), draft_tokens=default_draft_tokens(spec), max_steps=12)
    generated, _ = decode(session, 12)
    length = min(map(len, generated))
    whole = torch.cat([prompts(), torch.tensor([tokens[:length] for tokens in generated])], 1)
    with torch.inference_mode():
        caches = model.new_caches(SEQUENCES, whole.shape[1])
        hidden = model(whole, rows_at(0, whole.shape[1], keep_states=False), caches)
        choice = model.greedy(model.logits(hidden)).view(whole.shape)
    assert torch.equal(choice[:, PROMPT_LEN - 1 : -1], whole[:, PROMPT_LEN:])


@pytest.mark.parametrize("name", ALL)
def test_all_arms_and_tp_sizes_give_the_same_tokens_in_fp32(name: str) -> None:
    spec = tiny(name)
    k = default_draft_tokens(spec)

    def tokens_of_arms(comm: Communicator) -> list[tuple[Tokens, list[int]]]:
        model = build(spec, comm, torch.float32)
        found = []
        for arm in all_arms(spec):
            model.set_arm(arm)
            found.append(decode(DecodeSession(model, prompts(), draft_tokens=k, max_steps=8), 8))
        return found

    expected = run_ranks(1, tokens_of_arms)[0][0]
    for size in (2, 4) if name in STRUCTURES else (2,):
        for rank in run_ranks(size, tokens_of_arms, fused=True):
            assert all(found == expected for found in rank)


def test_local_argmax_changes_no_token_in_bf16() -> None:
    spec = tiny("deepseek-v3.2")

    def off_and_on(comm: Communicator) -> list[tuple[Tokens, list[int]]]:
        model = build(spec, comm, torch.bfloat16)
        found = []
        for arm in (frozenset[str](), frozenset({"local-argmax"})):
            model.set_arm(arm)
            found.append(decode(DecodeSession(model, prompts(), draft_tokens=3, max_steps=12), 12))
        return found

    for off, on in run_ranks(4, off_and_on):
        assert off == on


@pytest.mark.parametrize("name", ALL)
def test_tokens_vary(name: str) -> None:
    tokens = plain(name, 60, torch.bfloat16, vocab=8192)
    assert tokens[0] != tokens[1], "sequences differ"
    for sequence in tokens:
        assert len(set(sequence)) > 30
        for period in range(1, 8):
            tail = sequence[-24:]
            assert tail[period:] != tail[:-period], f"period {period}"


def test_the_context_matters_not_only_the_last_token() -> None:
    spec = tiny("deepseek-v3.2")
    model = build(spec, solo())
    one = prompts()
    other = one.clone()
    other[:, 0] = (other[:, 0] + 1) % spec.vocab_size
    hidden = []
    with torch.inference_mode():
        for tokens in (one, other):
            caches = model.new_caches(SEQUENCES, PROMPT_LEN)
            hidden.append(
                model(tokens, rows_at(0, PROMPT_LEN), caches).view(SEQUENCES, PROMPT_LEN, -1)[:, -1]
            )
    assert float((hidden[0] - hidden[1]).abs().max()) > 1e-3


def test_a_second_prefill_starts_over() -> None:
    for name, k in (("deepseek-v3.2", 3), ("nemotron-3-super", 3), ("kimi-k3", 0)):
        session = DecodeSession(
            build(tiny(name), solo()),
            prompts(),
            draft_tokens=k,
            max_steps=6,
            acceptance_length=2.0 if k else None,
        )
        assert decode(session, 6) == decode(session, 6)


def test_sequences_do_not_depend_on_their_neighbours() -> None:
    model = build(tiny("nemotron-3-super"), solo())
    together = decode(DecodeSession(model, prompts(), draft_tokens=2, max_steps=10), 10)[0]
    for index, prompt in enumerate(prompts()):
        alone = decode(DecodeSession(model, prompt[None], draft_tokens=2, max_steps=10), 10)[0]
        assert alone == [together[index]]


def test_synthetic_acceptance_is_the_same_everywhere_and_has_its_mean() -> None:
    spec = tiny("deepseek-v3.2", vocab=64)

    def accepted(arm: frozenset[str], steps: int, comm: Communicator) -> tuple[Tokens, list[int]]:
        model = build(spec, comm, torch.float32)
        model.set_arm(arm)
        session = DecodeSession(
            model,
            prompts(64, sequences=16),
            draft_tokens=3,
            max_steps=steps,
            acceptance_length=2.6,
            seed=4,
        )
        return decode(session, steps)

    expected = accepted(frozenset(), 40, solo())
    assert 1 + sum(expected[1]) / len(expected[1]) == pytest.approx(2.6, abs=0.12)
    assert set(expected[1]) == {0, 1, 2, 3}
    few = accepted(frozenset(), 5, solo())
    assert few[1] == expected[1][: len(few[1])], "nor does it depend on the number of steps"
    for arm in all_arms(spec):
        for found in run_ranks(2, partial(accepted, arm, 5), fused=True):
            assert found == few


@pytest.mark.parametrize(("length", "counts"), [(1.0, {0}), (4.0, {3})])
def test_extreme_acceptance_lengths(length: float, counts: set[int]) -> None:
    session = DecodeSession(
        build(tiny("deepseek-v3.2"), solo()),
        prompts(),
        draft_tokens=3,
        max_steps=5,
        acceptance_length=length,
    )
    assert set(decode(session, 5)[1]) == counts


@pytest.mark.parametrize(("length", "draft_tokens"), [(1.0, 3), (2.5, 3), (4.0, 3), (1.7, 1), (1.0, 0)])
def test_the_acceptance_rate_gives_its_length(length: float, draft_tokens: int) -> None:
    rate = acceptance_rate(length, draft_tokens)
    assert sum(rate**power for power in range(draft_tokens + 1)) == pytest.approx(length)


def session_of(name: str, **options: int | float) -> Callable[[], object]:
    base: dict[str, int | float] = {"draft_tokens": 3, "max_steps": 1} | options
    return lambda: DecodeSession(build(tiny(name), solo()), prompts(), **base)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (session_of("kimi-k2"), r"kimi-k2: it has no draft module \(MTP\); use --draft-tokens 0"),
        (
            session_of("glm-5.2", acceptance_length=4.5),
            "4.5 is impossible with 3 draft tokens; choose 1 to 4",
        ),
        (session_of("glm-5.2", acceptance_length=0.5), "0.5 is impossible"),
    ],
)
def test_impossible_sessions_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_more_steps_than_prepared_for_are_refused() -> None:
    session = DecodeSession(build(tiny("glm-5.2"), solo()), prompts(), draft_tokens=1, max_steps=1)
    with pytest.raises(ValueError, match="prefill"):
        session.step()
    session.prefill()
    session.step()
    with pytest.raises(ValueError, match="allows 1 steps"):
        session.step()


@pytest.mark.parametrize("name", STRUCTURES)
def test_log_probabilities_of_prompts_are_those_of_every_arm_and_tp_size(name: str) -> None:
    spec = tiny(name)

    def probe(comm: Communicator) -> list[list[list[float]]]:
        model = build(spec, comm, torch.float64)
        found = []
        for arm in all_arms(spec, comm.size):
            model.set_arm(arm)
            found.append(prompt_logprobs(model, prompts()))
        return found

    (reference,) = probe(solo())[:1]
    assert [len(values) for values in reference] == [PROMPT_LEN - 1] * SEQUENCES
    assert all(value < 0 for values in reference for value in values)
    for found in run_ranks(2, probe):
        for values in found:
            torch.testing.assert_close(torch.tensor(values), torch.tensor(reference), rtol=1e-6, atol=1e-6)


def test_a_prompt_of_one_token_has_no_log_probability() -> None:
    model = build(tiny("deepseek-v3.2"), solo(), torch.float32)
    assert prompt_logprobs(model, prompts()[:, :1]) == [[]] * SEQUENCES


def test_the_log_probability_of_a_token_is_that_of_the_plain_softmax() -> None:
    model = build(tiny("nemotron-3-super"), solo(), torch.float64)
    tokens = prompts()
    positions = torch.arange(PROMPT_LEN).expand(SEQUENCES, -1)
    rows = Rows(positions, key_length=PROMPT_LEN, keep_states=False)
    with torch.inference_mode():
        logits = model.logits(model(tokens, rows, model.new_caches(SEQUENCES, PROMPT_LEN)))
    everything = logits.view(SEQUENCES, PROMPT_LEN, -1).log_softmax(-1)
    expected = everything[:, :-1].gather(2, tokens[:, 1:, None])[..., 0]
    found = torch.tensor(prompt_logprobs(model, tokens), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
