"""The built-in model on a card, with experts in RAM that change places: company, swaps and restarts change no token."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from appliance.engine.handle import FinishReason, SamplingParams
from appliance.gguf.reader import open_set
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.model import DeviceModel, load_device_model
from appliance.model.qwen4exp.device_footprint import expert_bytes
from appliance.model.qwen4exp.spec import read_spec
from tests.engine import harness
from tests.engine.harness import Answer, Running, collect, running
from tests.engine.real import BUILTIN, CARD_CONFIG, chats, long_prompt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card: hours in the interpreter")

TOKENS = 60
NO_DRAFTS = replace(CARD_CONFIG, draft_max=0)
CHAT = SamplingParams(temperature=0.7, top_k=20, top_p=0.95, seed=42)
play = functools.partial(harness.play, limit_s=600)


def load(*, adapt_every: int, profile: str = "") -> DeviceModel:
    """Four tenths of the experts on the card."""
    spec = read_spec(open_set(BUILTIN))
    plan = LoadPlan(
        device="cuda:0",
        kv_type="bf16",
        slots=CARD_CONFIG.slots,
        pages=CARD_CONFIG.pages,
        page_tokens=CARD_CONFIG.page_tokens,
        max_tokens=CARD_CONFIG.max_tokens,
        max_window_rows=40,
        draft_max=CARD_CONFIG.draft_max,
        expert_pool_bytes=round(0.4 * expert_bytes(spec, draft=True).total),
        adapt_every=adapt_every,
        profile=profile,
    )
    return load_device_model(spec, plan, lambda sentence, percent: None)


@functools.cache
def fixed() -> DeviceModel:
    return load(adapt_every=0)


@functools.cache
def swapping() -> DeviceModel:
    return load(adapt_every=1)


@functools.cache
def alone() -> tuple[tuple[int, ...], ...]:
    """Each chat's greedy answer with nobody beside it, the experts where they were put."""
    found: list[tuple[int, ...]] = []

    async def scenario() -> None:
        async with running(fixed(), CARD_CONFIG) as run:
            for prompt in chats():
                found.append(tuple((await collect(run.ask(prompt, TOKENS))).ids))

    play(scenario)
    return tuple(found)


@pytest.mark.parametrize("clients", [1, 2, 4, 8], ids=str)
def test_everybody_drafts_and_gets_the_text_alone(clients: int) -> None:
    """SPEC-01, SPEC-02, SPEC-05: in every slot, while experts change places."""
    wanted = alone()[:clients]

    async def scenario() -> None:
        async with running(swapping(), CARD_CONFIG) as run:
            answers = await asyncio.gather(*(collect(run.ask(prompt, TOKENS)) for prompt in chats()[:clients]))
            assert [tuple(answer.ids) for answer in answers] == list(wanted)
            for answer in answers:
                usage = answer.finished.usage
                assert usage.drafts_accepted > 0.3 * usage.drafts_offered > 0

    play(scenario)


def test_joins_leaves_and_a_long_prompt_change_nobody() -> None:
    """SPEC-04, SPEC-10."""
    long, wanted = long_prompt(700), alone()

    async def scenario() -> None:
        async with running(swapping(), CARD_CONFIG) as run:
            joined: dict[str, asyncio.Task[Answer]] = {}

            def follow(answer: Answer) -> None:
                if len(answer.ids) >= 10 and not joined:
                    joined["long"] = asyncio.create_task(collect(run.ask(long, 12)))
                    joined["short"] = asyncio.create_task(collect(run.ask(chats()[1], 30)))
                    joined["left"] = asyncio.create_task(cut_at(run, 2, 8))

            first = await collect(run.ask(chats()[0], TOKENS), after=follow)
            assert tuple(first.ids) == wanted[0]
            assert tuple((await joined["short"]).ids) == wanted[1][:30]
            left = await joined["left"]
            assert left.finished.reason is FinishReason.CANCELLED
            shorter = min(len(left.ids), TOKENS)
            assert tuple(left.ids[:shorter]) == wanted[2][:shorter]
            again = await collect(run.ask(long, 12))
            assert (await joined["long"]).ids == again.ids
            assert run.status().cache.pages_used == 0

    play(scenario)


async def cut_at(run: Running, chat: int, tokens: int) -> Answer:
    stream = run.ask(chats()[chat], 4 * TOKENS)
    return await collect(stream, after=lambda answer: stream.cancel() if len(answer.ids) >= tokens else None)


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0), CHAT], ids=["greedy", "seed"])
def test_the_same_request_five_times(sampling: SamplingParams, tmp_path: Path) -> None:
    """SAMP-05, MEM-08: cold, again, beside others, after swaps, and after a restart with what was learned."""
    found: list[list[int]] = []
    profile = str(tmp_path / "routing.npy")
    model = load(adapt_every=1, profile=profile)

    async def scenario() -> None:
        async with running(model, CARD_CONFIG) as run:
            ask = functools.partial(run.ask, chats()[3], TOKENS, sampling=sampling)
            found.append((await collect(ask())).ids)
            found.append((await collect(ask())).ids)
            beside = [run.ask(chats()[number], TOKENS) for number in (0, 4)]
            answer, *_ = await asyncio.gather(*map(collect, (ask(), *beside)))
            found.append(answer.ids)
            experts = run.status().cache.experts
            assert experts is not None
            assert experts.swaps > 0
            assert experts.hits is not None
            assert experts.hits > 0.4
            found.append((await collect(ask())).ids)

    async def restarted() -> None:
        async with running(again, CARD_CONFIG) as run:
            found.append((await collect(run.ask(chats()[3], TOKENS, sampling=sampling))).ids)

    play(scenario)
    model.report.remember()
    model.close()
    again = load(adapt_every=0, profile=profile)
    store = again.parts.stages[0].store
    assert store is not None
    assert any(list(layer.resident) != list(range(len(layer.resident))) for layer in store.layers)
    play(restarted)
    again.close()
    assert found == [found[0]] * 5


@pytest.mark.parametrize("config", [CARD_CONFIG, NO_DRAFTS], ids=["drafts", "no drafts"])
def test_around_the_sparse_budget(config: object) -> None:
    """SPEC-07: prompts that end just below, at and above the indexer's 256 tokens, and decoding across it."""
    lengths = (253, 255, 256, 257, 260)
    texts: list[list[list[int]]] = []

    async def scenario() -> None:
        async with running(swapping(), config) as run:  # type: ignore[arg-type]
            prompts = [long_prompt(length) for length in lengths]
            together = await asyncio.gather(*(collect(run.ask(prompt, 8)) for prompt in prompts))
            texts.append([answer.ids for answer in together])
            texts.append([(await collect(run.ask(prompt, 8))).ids for prompt in prompts])

    play(scenario)
    assert texts[0] == texts[1]


def test_memory_does_not_grow_with_what_is_asked() -> None:
    """MEM-05: a full context in every slot takes no byte that was not there after the first windows of each size."""

    async def scenario() -> None:
        async with running(swapping(), CARD_CONFIG) as run:

            async def everybody(tokens: int) -> None:
                await asyncio.gather(
                    *(collect(run.ask(long_prompt(tokens - 60 - slot), 40)) for slot in range(CARD_CONFIG.slots))
                )

            await everybody(400)
            before = torch.cuda.memory_allocated()
            await everybody(CARD_CONFIG.max_tokens)
            assert torch.cuda.memory_allocated() - before < before // 100

    play(scenario)
