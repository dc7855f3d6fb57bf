"""Windows that may come are made ready while nobody asks for anything, one after the other, until none is left."""

from __future__ import annotations

import asyncio

import pytest

from appliance.engine import loop
from tests.builders.ahead_model import AheadFake
from tests.builders.stepping_model import ROWS
from tests.engine.harness import PROMPTS, collect, play, running, until


class Preparing(AheadFake):
    """Has `left` windows to get ready."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left, self.calls = left, 0

    def prepare(self) -> bool:
        assert self.flying == {}, "a window is on its way"
        self.calls += 1
        self.left -= 1
        return self.left >= 0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_QUIET_S", 0.001)


@pytest.mark.parametrize("left", [0, 1, 5])
def test_an_idle_engine_gets_all_ready_and_then_sleeps(left: int) -> None:
    model = Preparing(left)

    async def scenario() -> None:
        async with running(model, max_rows=ROWS) as run:
            await until(lambda: model.calls > left)
            assert (await collect(run.ask(PROMPTS[1], 9))).ids == model.greedy(PROMPTS[1], 9)

    play(scenario)
    assert model.calls == left + 1


def test_requests_go_first() -> None:
    model = Preparing(10**9)

    async def scenario() -> None:
        async with running(model, max_rows=ROWS) as run:
            answers = await asyncio.gather(*(collect(run.ask(prompt, 30)) for prompt in PROMPTS[:3]))
            assert [answer.ids for answer in answers] == [model.greedy(prompt, 30) for prompt in PROMPTS[:3]]
            await until(lambda: model.calls > 3)
            assert (await collect(run.ask(PROMPTS[4], 9))).ids == model.greedy(PROMPTS[4], 9)

    play(scenario)
