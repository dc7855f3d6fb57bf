"""Stages under the engine, on a card: with joins, leaves and a long prompt, everybody gets the text of being alone."""

from __future__ import annotations

import asyncio
from functools import cache

import pytest
import torch

from appliance.engine.config import EngineConfig
from appliance.model.qwen4exp.device.model import DeviceModel
from appliance.scheduler.request import FinishReason
from tests.device.models import ON_CARD, PAGE, load
from tests.engine.harness import Running, collect, play, running

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
