"""Python looks for garbage after a window was sent, and when it likes while nobody wants one."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from appliance.engine import garbage
from appliance.engine.garbage import Garbage
from tests.builders.ahead_model import AheadFake
from tests.builders.stepping_model import ROWS
from tests.engine.harness import PROMPTS, collect, play, running, until


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize(
    ("counts", "looks"),
    [
        pytest.param((100, 0, 0), [], id="too few objects"),
        pytest.param((3000, 3, 0), [0], id="young ones"),
        pytest.param((3000, 10, 3), [1], id="many looks at young ones"),
        pytest.param((3000, 10, 100), [2], id="many looks at older ones"),
    ],
)
def test_how_far_back_is_looked(
    counts: tuple[int, int, int], looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    monkeypatch.setattr(garbage.gc, "get_count", lambda: counts)
    monkeypatch.setattr(garbage.gc, "collect", found.append)
    Garbage().tidy()
    assert found == looks
    assert not gc.isenabled()
    Garbage().rest()
    assert gc.isenabled()


def test_only_while_windows_come() -> None:
    model = AheadFake()
    while_sent: list[bool] = []
    model.before_forward = lambda window: while_sent.append(gc.isenabled())

    async def scenario() -> None:
        async with running(model, max_rows=ROWS) as run:
            assert (await collect(run.ask(PROMPTS[1], 20))).ids == model.greedy(PROMPTS[1], 20)
            await until(gc.isenabled)
            task = asyncio.create_task(collect(run.ask(PROMPTS[2], 200)))
            await until(lambda: not gc.isenabled())
            await task

    play(scenario)
    assert gc.isenabled()
    assert not any(while_sent[-5:])
