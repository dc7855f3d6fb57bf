"""Sampling in windows: the same tokens alone, in company, with drafts and without."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
import torch

from appliance.engine.handle import FinishReason, SamplingParams
from tests.builders.fake_model import FakeModel, always
from tests.engine.harness import GREEDY, Answer, collect, play, running

PROMPT = (3, 1, 4, 1, 5)
OTHERS = ((2, 7, 1), (8, 2, 8, 1, 8, 2), (9, 9, 9))
CHAT = SamplingParams(temperature=0.8, top_k=20, top_p=0.95, seed=11)

CASES = [
    pytest.param(CHAT, {}, id="SAMP-02 chat defaults"),
    pytest.param(SamplingParams(temperature=1.0, seed=5), {}, id="plain temperature"),
    pytest.param(SamplingParams(temperature=1.5, min_p=0.05, seed=-3), {}, id="min_p, negative seed"),
    pytest.param(SamplingParams(temperature=0.0, presence_penalty=2.0), {}, id="SAMP-01 presence, greedy"),
    pytest.param(SamplingParams(temperature=0.7, presence_penalty=2.0, seed=1), {}, id="SAMP-01 presence, sampled"),
    pytest.param(SamplingParams(temperature=0.0, frequency_penalty=1.5), {}, id="SAMP-01 frequency"),
    pytest.param(SamplingParams(temperature=0.0, repetition_penalty=1.8), {}, id="SAMP-01 repetition"),
    pytest.param(SamplingParams(temperature=0.0, logit_bias=((7, 6.0), (9, -100.0))), {}, id="logit_bias"),
    pytest.param(GREEDY, {"min_tokens": 30, "stop_token_ids": frozenset(range(20))}, id="min_tokens"),
    pytest.param(CHAT, {"top_logprobs": 3}, id="logprobs"),
]


def repetitive(drafts: bool) -> FakeModel:
    """A model that likes three tokens, so that penalties bite, with every draft right."""
    model = FakeModel(draft_right=always if drafts else None)
    model._table[:, 5:8] += 6.0
    return model


def answer(sampling: SamplingParams, fields: dict[str, Any], *, drafts: bool, company: bool) -> Answer:
    """The answer to PROMPT under these circumstances."""
    found: list[Answer] = []

    async def scenario() -> None:
        async with running(repetitive(drafts)) as run:
            streams = [run.ask(PROMPT, 50, sampling=sampling, **fields)]
            if company:
                mixed = (GREEDY, CHAT, SamplingParams(temperature=1.0, frequency_penalty=0.5))
                streams += [run.ask(prompt, 80, sampling=own) for prompt, own in zip(OTHERS, mixed, strict=True)]
            found.extend(await asyncio.gather(*map(collect, streams)))

    play(scenario)
    return found[0]


@pytest.mark.parametrize(("sampling", "fields"), CASES)
def test_the_same_in_all_four(sampling: SamplingParams, fields: dict[str, Any]) -> None:
    """SAMP-01, SAMP-02, SAMP-05: alone or beside others, drafts on or off; drafts are offered and accepted."""
    alone = answer(sampling, fields, drafts=False, company=False)
    for drafts, company in ((False, True), (True, False), (True, True)):
        other = answer(sampling, fields, drafts=drafts, company=company)
        assert other.ids == alone.ids
        assert other.finished.reason == alone.finished.reason
        assert [entry.token_id for entry in other.logprobs] == [entry.token_id for entry in alone.logprobs]
        if drafts:
            usage = other.finished.usage
            assert usage.drafts_offered > 0, "SAMP-02"
            assert usage.drafts_accepted > 0.8 * usage.drafts_offered


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(SamplingParams(temperature=0.0, presence_penalty=2.0), id="presence"),
        pytest.param(SamplingParams(temperature=0.0, frequency_penalty=1.5), id="frequency"),
        pytest.param(SamplingParams(temperature=0.0, repetition_penalty=1.8), id="repetition"),
        pytest.param(SamplingParams(temperature=0.0, presence_penalty=1.0, logit_bias=((7, 3.0),)), id="with bias"),
    ],
)
def test_penalties_are_what_they_say(sampling: SamplingParams) -> None:
    """SAMP-01: equal to the definition, written out."""
    model = repetitive(drafts=False)
    tokens = list(PROMPT)
    for _ in range(50):
        logits = model.row(tuple(tokens)).clone()
        for token, bias in sampling.logit_bias:
            logits[token] += bias
        output = Counter(tokens[len(PROMPT) :])
        for token in set(tokens):
            if logits[token] > 0:
                logits[token] /= sampling.repetition_penalty
            else:
                logits[token] *= sampling.repetition_penalty
        for token, count in output.items():
            logits[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
        tokens.append(int(logits.argmax()))
    assert answer(sampling, {}, drafts=True, company=True).ids == tokens[len(PROMPT) :]


def test_a_seed_repeats_and_another_seed_differs() -> None:
    """SAMP-05."""
    first = answer(CHAT, {}, drafts=True, company=False).ids
    assert answer(CHAT, {}, drafts=True, company=True).ids == first
    other = SamplingParams(temperature=CHAT.temperature, top_k=CHAT.top_k, top_p=CHAT.top_p, seed=12)
    assert answer(other, {}, drafts=True, company=False).ids != first


def test_stop_tokens_come_no_sooner_than_min_tokens() -> None:
    fields = {"stop_token_ids": frozenset(range(30))}
    soon = answer(GREEDY, fields, drafts=True, company=False)
    late = answer(GREEDY, {**fields, "min_tokens": 20}, drafts=True, company=False)
    assert soon.finished.usage.completion_tokens < 5
    assert late.finished.usage.completion_tokens > 20
    assert not set(late.ids) & fields["stop_token_ids"]
    assert late.finished.reason is FinishReason.STOP


def test_logprobs_are_of_the_unmodified_distribution() -> None:
    sampling = SamplingParams(temperature=0.7, presence_penalty=1.0, logit_bias=((7, 3.0),), seed=4)
    model = repetitive(drafts=True)
    found = answer(sampling, {"top_logprobs": 4}, drafts=True, company=True)
    tokens = list(PROMPT)
    assert len(found.logprobs) == len(found.ids) == 50
    for token, entry in zip(found.ids, found.logprobs, strict=True):
        expected = torch.log_softmax(model.row(tuple(tokens)), 0)
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(float(expected[token]), abs=1e-5)
        best = expected.topk(4)
        assert [token_id for token_id, _ in entry.top] == best.indices.tolist()
        assert [logprob for _, logprob in entry.top] == pytest.approx(best.values.tolist(), abs=1e-5)
        tokens.append(token)


@pytest.mark.parametrize("max_tokens", [0, 6], ids=["score only", "score and continue"])
@pytest.mark.parametrize("length", [1, 2, 16, 41], ids=["one", "two", "one chunk", "three chunks"])
def test_a_prompt_is_scored_over_its_chunks(length: int, max_tokens: int) -> None:
    prompt = tuple((5 * number + 2) % 61 for number in range(length))
    model = repetitive(drafts=True)

    async def scenario() -> None:
        async with running(model) as run:
            scored, beside = await asyncio.gather(
                collect(run.ask(prompt, max_tokens, prompt_logprobs=2)), collect(run.ask(OTHERS[0], 30))
            )
            assert beside.ids == model.greedy(OTHERS[0], 30)
            assert scored.ids == model.greedy(prompt, max_tokens)
            assert scored.finished.reason is FinishReason.LENGTH
            assert scored.finished.usage.completion_tokens == max_tokens
            assert scored.scores is not None
            entries = scored.scores.logprobs
            assert len(entries) == length
            assert entries[0] is None
            for place, entry in enumerate(entries[1:], 1):
                assert entry is not None
                expected = torch.log_softmax(model.row(prompt[:place]), 0)
                assert entry.token_id == prompt[place]
                assert entry.logprob == pytest.approx(float(expected[prompt[place]]), abs=1e-5)
                assert [token_id for token_id, _ in entry.top] == expected.topk(2).indices.tolist()

    play(scenario)
