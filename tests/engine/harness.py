"""Runs scenarios against an engine inside one event loop, with a limit on every wait."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from appliance.engine.config import EngineConfig
from appliance.engine.engine import Engine
from appliance.engine.handle import (
    EngineHandle,
    EngineStatus,
    Finished,
    GenerationRequest,
    PromptScored,
    RequestStream,
    SamplingParams,
    TokenLogprob,
    Tokens,
)
from appliance.model.interface import LoadedModel
from appliance.model.window import Window
from tests.builders.fake_model import FakeModel

LIMIT_S = 60.0
GREEDY = SamplingParams(temperature=0.0)
PROMPTS = [tuple((7 * number + place) % 61 for place in range(3 + 5 * number)) for number in range(8)]
SMALL = EngineConfig(slots=4, page_tokens=4, pages=256, max_tokens=256, prompt_chunk=16, draft_max=3, watchdog_s=60.0)

_numbers = itertools.count()


@dataclass
class Answer:
    """What a stream delivered."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    bursts: list[int] = field(default_factory=list)
    scores: PromptScored | None = None
    end: Finished | None = None

    @property
    def finished(self) -> Finished:
        """The last event."""
        assert self.end is not None
        return self.end


@dataclass
class Running:
    """A started engine and the faults it reported."""

    engine: Engine
    handle: EngineHandle
    faults: list[str]
    fault_seen: asyncio.Event

    def ask(self, prompt: Sequence[int], max_tokens: int, **fields: Any) -> RequestStream:
        """Submits a greedy request with a fresh id."""
        fields = {"id": f"r{next(_numbers)}", "sampling": GREEDY, **fields}
        return self.handle.submit(GenerationRequest(prompt_ids=tuple(prompt), max_tokens=max_tokens, **fields))

    def status(self) -> EngineStatus:
        """The engine's picture."""
        return self.handle.status()


@asynccontextmanager
async def running(model: LoadedModel, config: EngineConfig = SMALL, **changes: Any) -> AsyncIterator[Running]:
    """Starts an engine and stops it whatever happens."""
    faults: list[str] = []
    seen = asyncio.Event()

    def on_fault(sentence: str) -> None:
        faults.append(sentence)
        seen.set()

    engine = Engine(model, replace(config, **changes), on_fault=on_fault)
    engine.start(asyncio.get_running_loop())
    try:
        yield Running(engine, engine.handle, faults, seen)
    finally:
        engine.stop()


class Gate:
    """Holds the engine's thread before a window; open until closed."""

    def __init__(self, model: FakeModel, *, when: Callable[[Window], bool] = lambda window: True) -> None:
        """Stands before the windows that `when` picks."""
        self._when = when
        self._arrived = threading.Event()
        self._opened = threading.Event()
        self._opened.set()
        model.before_forward = self

    def __call__(self, window: Window) -> None:
        """Runs on the engine's thread."""
        if self._when(window) and not self._opened.is_set():
            self._arrived.set()
            assert self._opened.wait(LIMIT_S), "the scenario never opened the gate"

    def close(self) -> None:
        """From the next window on the engine waits."""
        self._arrived.clear()
        self._opened.clear()

    def open(self) -> None:
        """Lets the engine go on."""
        self._opened.set()

    async def reached(self) -> None:
        """Waits for the engine to stand before a window."""
        assert await asyncio.to_thread(self._arrived.wait, LIMIT_S)


async def collect(stream: RequestStream, *, after: Callable[[Answer], None] | None = None) -> Answer:
    """Reads a stream to its end; `after` is called with the answer so far after every event."""
    answer = Answer()
    async for event in stream:
        assert answer.end is None, "an event after the last"
        assert event.request_id == stream.request_id
        match event:
            case Tokens():
                answer.ids.extend(event.ids)
                answer.bursts.append(len(event.ids))
                answer.logprobs.extend(event.logprobs or ())
            case PromptScored():
                answer.scores = event
            case Finished():
                answer.end = event
        if after is not None:
            after(answer)
    return answer


async def until(condition: Callable[[], bool]) -> None:
    """Lets the event loop run until the condition holds; the scenario's limit ends it otherwise."""
    while not condition():  # noqa: ASYNC110  the condition changes on the engine's thread, which sets no event
        await asyncio.sleep(0)


def play(scenario: Callable[[], Awaitable[None]], *, limit_s: float = LIMIT_S) -> None:
    """Runs a scenario; fails instead of hanging."""

    async def limited() -> None:
        await asyncio.wait_for(scenario(), limit_s)

    asyncio.run(limited())
