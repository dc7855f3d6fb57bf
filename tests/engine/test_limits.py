"""What the engine refuses, what it lets wait, and in which order the waiting are served."""

from __future__ import annotations

import asyncio

import pytest

from appliance.engine.handle import FinishReason, SamplingParams
from appliance.errors import ContextLengthError, QueueFullError, RequestError
from tests.builders.fake_model import FakeModel, always, mixed
from tests.engine.harness import PROMPTS, Answer, Gate, collect, play, running, until


def test_more_users_than_slots() -> None:
    """SPEC-12: 4 slots and a queue of 8: 12 streams are served in order, of 40 more all are refused at once."""
    model = FakeModel(draft_right=mixed)
    gate = Gate(model)
    order: list[int] = []

    async def scenario() -> None:
        async with running(model, queue_limit=8) as run:
            gate.close()
            streams = [run.ask(PROMPTS[number % 8], 20) for number in range(12)]
            for _ in range(40):
                with pytest.raises(QueueFullError) as refused:
                    run.ask(PROMPTS[0], 20)
                assert refused.value.retry_after_s >= 1
            await gate.reached()
            await until(lambda: run.status().queue.waiting == 8)
            assert run.status().queue.oldest_wait_s > 0
            gate.open()

            async def served(number: int) -> None:
                def first(answer: Answer) -> None:
                    if number not in order:
                        order.append(number)

                answer = await collect(streams[number], after=first)
                assert answer.ids == model.greedy(PROMPTS[number % 8], 20)

            await asyncio.gather(*(served(number) for number in range(12)))
            assert run.status().queue.waiting == 0

    play(scenario)
    assert sorted(order[:4]) == [0, 1, 2, 3]
    assert sorted(order[4:]) == list(range(4, 12))


def test_the_sum_of_contexts_may_exceed_the_pages() -> None:
    """MEM-06: four conversations of 0.4 of all pages: two run, two wait, none is cut or lost."""
    model = FakeModel(draft_right=mixed)
    prompt = tuple(number % 61 for number in range(80))
    most: list[int] = []

    async def scenario() -> None:
        async with running(model, pages=64, max_tokens=256) as run:
            streams = [run.ask(prompt, 22) for _ in range(4)]

            def watch(_: Answer) -> None:
                most.append(run.status().cache.pages_used)

            for answer in await asyncio.gather(*(collect(stream, after=watch) for stream in streams)):
                assert answer.ids == model.greedy(prompt, 22)
            assert run.status().cache.pages_used == 0

    play(scenario)
    assert max(most) == 52
    assert max(len(window.spans) for window in model.windows) == 2


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "fields", "error", "said"),
    [
        pytest.param((), 5, {}, RequestError, "empty", id="empty prompt"),
        pytest.param((1, 61), 5, {}, RequestError, "token id 61; ids go from 0 to 60", id="SPEC-13 id outside"),
        pytest.param((1, -1), 5, {}, RequestError, "token id -1", id="negative id"),
        pytest.param((1,) * 256, 5, {}, ContextLengthError, "256 tokens", id="no room"),
        pytest.param((1,), 0, {}, RequestError, "max_tokens is 0", id="nothing to do"),
        pytest.param((1,), 5, {"top_logprobs": -1}, RequestError, "top_logprobs", id="negative count"),
    ],
)
def test_a_bad_request_fails_alone(
    prompt: tuple[int, ...], max_tokens: int, fields: dict[str, int], error: type[RequestError], said: str
) -> None:
    """SPEC-13: refused at once with its reason; those before and after it are served."""
    model = FakeModel()

    async def scenario() -> None:
        async with running(model, slots=1) as run:
            before, after = run.ask(PROMPTS[0], 10), run.ask(PROMPTS[1], 10)
            with pytest.raises(error, match=said):
                run.ask(prompt, max_tokens, **fields)
            assert (await collect(before)).ids == model.greedy(PROMPTS[0], 10)
            assert (await collect(after)).ids == model.greedy(PROMPTS[1], 10)

    play(scenario)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_k", 2**40),
        ("top_p", 1.1),
        ("top_p", -1.0),
        ("min_p", 1.1),
        ("presence_penalty", float("nan")),
        ("frequency_penalty", 1e30),
        ("repetition_penalty", 0.0),
        ("logit_bias", ((61, 1.0),)),
        ("logit_bias", ((1, float("inf")),)),
    ],
)
def test_a_number_out_of_range_is_refused_before_it_is_queued(name: str, value: float) -> None:
    """SAMP-06: whatever the server let through, the engine's thread never meets it."""

    async def scenario() -> None:
        async with running(FakeModel()) as run:
            with pytest.raises(RequestError, match=name) as refused:
                run.ask((1,), 5, sampling=SamplingParams(**{name: value}))  # type: ignore[arg-type]
            assert refused.value.param == name

    play(scenario)


def test_the_context_ends_an_answer_with_length() -> None:
    model = FakeModel(draft_right=always)

    async def scenario() -> None:
        async with running(model) as run:
            answer = await collect(run.ask((1,) * 250, 100))
            assert answer.ids == model.greedy((1,) * 250, 6)
            assert answer.finished.reason is FinishReason.LENGTH

    play(scenario)
