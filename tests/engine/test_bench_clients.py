"""The clients of `strata bench` against real engines over a model that computes nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from appliance.bench import clients
from appliance.bench.clients import Answer, ClientsTime, PromptTime, ask, time_clients, time_prompt
from appliance.bench.session import Session
from appliance.engine.config import EngineConfig
from appliance.engine.handle import EngineHandle
from appliance.errors import EngineFault
from appliance.model.interface import LoadedModel
from tests.builders.fake_model import FakeModel, mixed
from tests.engine.harness import PROMPTS, SMALL

TOKENS = 24


def test_clients_with_drafts_and_without() -> None:
    """One model, two engines after each other: every text as alone, acceptance where there are drafts."""
    model, lines = FakeModel(draft_right=mixed), list[ClientsTime]()

    async def work(engine: EngineHandle, config: EngineConfig, own: LoadedModel) -> None:
        assert own is model
        alone = [await ask(engine, prompt, TOKENS) for prompt in PROMPTS[:3]]
        assert [list(answer.ids) for answer in alone] == [model.greedy(prompt, TOKENS) for prompt in PROMPTS[:3]]
        for count in (1, 3):
            lines.append(
                await time_clients(
                    engine, PROMPTS[:count], tokens=TOKENS, draft_max=config.draft_max, alone=alone[:count]
                )
            )

    assert Session(lambda: model, [SMALL, replace(SMALL, draft_max=0)]).run(work) is model
    assert [(line.clients, line.draft_max, line.same) for line in lines] == [(1, 3, 1), (3, 3, 3), (1, 0, 1), (3, 0, 3)]
    assert [len(line.accepted) > 0 for line in lines] == [True, True, False, False]
    assert all(0 < share <= 1 for line in lines[:2] for share in line.accepted)
    assert lines[2].rows == 1.0
    assert lines[1].rows > 3
    assert all(line.tokens_per_s > 0 and line.first_token_s > 0 and line.windows > 0 for line in lines)


def test_wrong_texts_have_no_speed() -> None:
    async def work(engine: EngineHandle, config: EngineConfig, own: LoadedModel) -> None:
        wrong = Answer(ids=(60,) * TOKENS, first_s=1.0)
        await time_clients(engine, PROMPTS[:1], tokens=TOKENS, draft_max=0, alone=[wrong])

    with pytest.raises(EngineFault, match="a text began"):
        Session(FakeModel, [SMALL]).run(work)


@pytest.mark.parametrize(
    ("graphs", "runs"),
    [
        pytest.param([3, 3], 2, id="none was made"),
        pytest.param([3, 4, 4, 4], 3, id="one was made while they were timed"),
        pytest.param([3, 4], 2, id="no time for another run"),
    ],
)
def test_what_was_timed_while_a_graph_was_made_does_not_count(
    graphs: list[int], runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_WARM_S", 30.0 if len(graphs) > 2 else -1.0)
    model, counts = FakeModel(), iter(graphs)

    async def work(engine: EngineHandle, config: EngineConfig, own: LoadedModel) -> None:
        alone = [await ask(engine, PROMPTS[0], TOKENS)]
        before = sum(engine.status().requests_finished.values())
        made = lambda: next(counts)  # noqa: E731
        line = await time_clients(engine, PROMPTS[:1], tokens=TOKENS, draft_max=0, alone=alone, made=made)
        assert sum(engine.status().requests_finished.values()) - before == runs
        assert line.windows == TOKENS

    Session(lambda: model, [replace(SMALL, draft_max=0)]).run(work)


def test_prompts() -> None:
    found: list[PromptTime] = []

    async def work(engine: EngineHandle, config: EngineConfig, own: LoadedModel) -> None:
        found.append(await time_prompt(engine, [tuple(range(start, start + 40)) for start in (0, 5, 9)]))

    Session(FakeModel, [SMALL]).run(work)
    assert found[0].tokens == 40
    assert found[0].tokens_per_s == pytest.approx(40 / found[0].first_token_s)


def test_what_loading_met_is_raised() -> None:
    def broken() -> LoadedModel:
        raise EngineFault("no such card")

    async def work(engine: EngineHandle, config: EngineConfig, own: LoadedModel) -> None:
        raise AssertionError("nothing was loaded")

    with pytest.raises(EngineFault, match="no such card"):
        Session(broken, [SMALL]).run(work)


def test_an_engine_that_is_lost_ends_the_run() -> None:
    model = FakeModel()
    calls = 0

    def lose(window: object) -> None:
        nonlocal calls
        calls += 1
        if calls > 6:
            raise RuntimeError("the card is lost")

    async def work(engine: EngineHandle, config: EngineConfig, own: LoadedModel) -> None:
        model.before_forward = lose
        await asyncio.gather(*(ask(engine, prompt, TOKENS) for prompt in PROMPTS[:2]))

    with pytest.raises(EngineFault, match="the card is lost"):
        Session(lambda: model, [SMALL]).run(work)
