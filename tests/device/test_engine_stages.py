"""Stages under the engine, on a card: with joins, leaves and a long prompt, everybody gets the text of being alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import cache
from random import Random

import pytest
import torch

from appliance.engine.config import EngineConfig
from appliance.gguf.reader import open_set
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.model import DeviceModel, load_device_model
from appliance.model.qwen4exp.spec import read_spec
from appliance.scheduler.request import FinishReason
from tests.device.models import ON_CARD, PAGE, load
from tests.engine.harness import Running, collect, play, running
from tests.engine.real import BUILTIN, CARD_CONFIG, chats, long_prompt

SLOTS, TOKENS = 4, 320
LONG = tuple((5 * place + 3) % 256 for place in range(150))
ASKED = (((3, 8, 1), 60), ((5, 9), 8), (LONG, 24), ((2,), 40), ((7, 7, 4, 1, 2), 12), ((11, 3), 30))
DEVICES = [()] if torch.cuda.device_count() < 2 else [(), ("cuda:0", "cuda:1")]


def config_of(model: DeviceModel, *, draft_max: int) -> EngineConfig:
    return EngineConfig(
        slots=SLOTS,
        page_tokens=PAGE,
        pages=model.plan.pages,
        max_tokens=TOKENS,
        draft_max=draft_max,
        max_rows=40,
        span_rows=13,
        groups=model.plan.groups,
        watchdog_s=120.0,
    )


@cache
def texts_alone() -> list[list[int]]:
    """One stage, one conversation after the other, without drafts."""
    model, found = load("base4", slots=SLOTS, tokens=TOKENS, plain=False), []

    async def scenario() -> None:
        async with running(model, config_of(model, draft_max=0)) as run:
            for prompt, count in ASKED:
                found.append((await collect(run.ask(prompt, count))).ids)

    play(scenario, limit_s=240.0)
    return found


async def company(run: Running, wanted: list[list[int]]) -> None:
    """Four at once, two more as places come free, and one who leaves."""
    tasks = [asyncio.create_task(collect(run.ask(prompt, count))) for prompt, count in ASKED[:3]]
    leaver = run.ask(ASKED[3][0], 200)
    gone = await collect(leaver, after=lambda answer: leaver.cancel() if len(answer.ids) > 4 else None)
    assert gone.finished.reason is FinishReason.CANCELLED
    shorter = min(len(gone.ids), ASKED[3][1])
    assert gone.ids[:shorter] == wanted[3][:shorter]
    tasks += [asyncio.create_task(collect(run.ask(prompt, count))) for prompt, count in ASKED[3:]]
    assert [(await task).ids for task in tasks] == wanted
    assert run.faults == []


@pytest.mark.skipif(not ON_CARD, reason="needs a CUDA card: hours in the interpreter")
@pytest.mark.parametrize("draft_max", [3, 0], ids=["drafts", "no drafts"])
@pytest.mark.parametrize("devices", DEVICES, ids=lambda devices: "two cards" if devices else "one card")
def test_texts_in_company_on_stages_are_those_alone_on_one(devices: tuple[str, ...], draft_max: int) -> None:
    model = load("base4", slots=SLOTS, tokens=TOKENS, layer_split=(2,), devices=devices, groups=2, plain=False)
    wanted = texts_alone()

    async def scenario() -> None:
        async with running(model, config_of(model, draft_max=draft_max)) as run:
            await company(run, wanted)
            stages = run.status().stages
            assert len(stages) == 2
            assert all(stage.windows > 0 and stage.busy_s > 0 for stage in stages)

    play(scenario, limit_s=240.0)


def builtin(devices: tuple[str, ...], *, groups: int) -> DeviceModel:
    """The built-in model, in one stage or in two halves."""
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
        layer_split=(spec.trunk_layers // 2,) if groups > 1 else (),
        devices=devices if groups > 1 else (),
        groups=groups,
    )
    return load_device_model(spec, plan, lambda sentence, percent: None)


@cache
def answers_alone() -> dict[tuple[int, ...], list[int]]:
    """Of every chat, and of prompts around the indexer's 256 tokens, on one stage with nobody beside it."""
    model, found = builtin((), groups=1), {}

    async def scenario() -> None:
        async with running(model, CARD_CONFIG) as run:
            for prompt in (*chats(), *(long_prompt(length) for length in (253, 256, 259))):
                found[prompt] = (await collect(run.ask(prompt, 24))).ids

    play(scenario, limit_s=600.0)
    model.close()
    return found


@pytest.mark.skipif(not ON_CARD, reason="needs a CUDA card: hours in the interpreter")
@pytest.mark.parametrize("devices", DEVICES, ids=lambda devices: "two cards" if devices else "one card")
def test_rounds_of_chats_on_two_stages_mix_nobody_up(devices: tuple[str, ...]) -> None:
    """CACHE-05, SPEC-01, SPEC-02, SPEC-05, SPEC-07: two to eight at once in slots of others, in two groups."""
    model, wanted, random = builtin(devices, groups=2), answers_alone(), Random(5)
    sizes = (8, *(random.randint(2, 4) for _ in range(28)))
    rounds = [random.sample(sorted(wanted), size) for size in sizes]

    async def scenario() -> None:
        async with running(model, replace(CARD_CONFIG, groups=2)) as run:
            for some in rounds:
                answers = await asyncio.gather(*(collect(run.ask(prompt, 24)) for prompt in some))
                for prompt, answer in zip(some, answers, strict=True):
                    assert answer.ids == wanted[prompt]
                    assert answer.finished.usage.drafts_accepted > 0
            assert run.status().cache.pages_used == 0

    play(scenario, limit_s=600.0)
    model.close()
