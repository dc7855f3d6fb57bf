"""Clients of an engine in this process: what they get together, when the first token comes, how prompts are read."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from appliance.engine.handle import EngineHandle, EngineStatus, Finished, FinishReason, GenerationRequest, Tokens
from appliance.errors import EngineFault
from appliance.scheduler.request import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
# The first tokens of a text that is right cannot depend on company; later ones part where two logits nearly tie.
SURE_TOKENS = 4
# Runs of the same clients until one meets no window of a new size: two at least, then until so much time has passed.
_WARM_S = 20.0

_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer: its tokens, and seconds to the first of them."""

    ids: tuple[int, ...]
    first_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientsTime:
    """What a number of clients got.

    Attributes:
        clients: at the same time.
        draft_max: longest draft they were offered.
        tokens_per_s: of all together.
        windows, rows: how many windows, and rows of one on average.
        window_s, host_s, draft_s: of one window on average; `draft_s` is 0.0 where drafting is part of the window.
        accepted: share of the drafts that stood, by depth.
        first_token_s: median.
        same: clients whose text equals their text alone.
        host_gap_p99_s: see `TimingStatus`; None where there is no such thing.
    """

    clients: int
    draft_max: int
    tokens_per_s: float
    windows: int
    rows: float
    window_s: float
    host_s: float
    draft_s: float
    accepted: tuple[float, ...]
    first_token_s: float
    same: int
    host_gap_p99_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTime:
    """How a prompt of `tokens` tokens was read by an idle engine: seconds to its answer's first token."""

    tokens: int
    first_token_s: float

    @property
    def tokens_per_s(self) -> float:
        """Of the prompt."""
        return self.tokens / self.first_token_s


async def ask(engine: EngineHandle, prompt: Sequence[int], tokens: int) -> Answer:
    """One greedy answer of exactly `tokens` tokens, whatever ends a turn.

    Raises:
        EngineFault: the engine ended it otherwise.
    """
    number = next(_numbers)
    began_s = time.perf_counter()
    stream = engine.submit(
        GenerationRequest(id=f"bench-{number}", prompt_ids=tuple(prompt), max_tokens=tokens, sampling=GREEDY)
    )
    ids: list[int] = []
    first_s = 0.0
    async for event in stream:
        if isinstance(event, Tokens):
            first_s = first_s or time.perf_counter() - began_s
            ids += event.ids
        elif isinstance(event, Finished) and event.reason is not FinishReason.LENGTH:
            raise EngineFault(event.error or f"a bench answer ended as {event.reason}")
    return Answer(ids=tuple(ids), first_s=first_s)


async def time_clients(
    engine: EngineHandle,
    prompts: Sequence[tuple[int, ...]],
    *,
    tokens: int,
    draft_max: int,
    alone: Sequence[Answer],
    made: Callable[[], int] = lambda: 0,
) -> ClientsTime:
    """Lets one client a prompt ask at the same time, at first to make every graph, then for the numbers.

    Clients never meet in the same way twice, so windows of a new size may still come while they are timed, and making a
    graph takes longer than many windows. What was timed then is thrown away, for a while.

    Args:
        engine: idle.
        prompts: of the clients.
        tokens: of an answer.
        draft_max: longest draft that is offered.
        alone: what each client's text is alone.
        made: how many graphs there are.

    Raises:
        EngineFault: a text differs from the same client's text alone where it cannot, so speeds would mean nothing.
    """
    await asyncio.gather(*(ask(engine, prompt, tokens) for prompt in prompts))
    give_up_s = time.perf_counter() + _WARM_S
    while True:
        graphs, before, began_s = made(), engine.status(), time.perf_counter()
        answers = await asyncio.gather(*(ask(engine, prompt, tokens) for prompt in prompts))
        took_s = time.perf_counter() - began_s
        if made() == graphs or time.perf_counter() > give_up_s:
            break
    for answer, own in zip(answers, alone, strict=True):
        if answer.ids[:SURE_TOKENS] != own.ids[:SURE_TOKENS]:
            raise EngineFault(f"with {len(prompts)} clients a text began {answer.ids[:4]}, alone {own.ids[:4]}")
    return _line(before, engine.status(), answers, draft_max=draft_max, took_s=took_s, alone=alone)


def _line(
    before: EngineStatus,
    after: EngineStatus,
    answers: Sequence[Answer],
    *,
    draft_max: int,
    took_s: float,
    alone: Sequence[Answer],
) -> ClientsTime:
    old, new = before.timings, after.timings
    windows = max(1, new.windows - old.windows)
    offered = [late - early for late, early in zip(after.drafts.offered, before.drafts.offered, strict=True)]
    accepted = [late - early for late, early in zip(after.drafts.accepted, before.drafts.accepted, strict=True)]
    return ClientsTime(
        clients=len(answers),
        draft_max=draft_max,
        tokens_per_s=sum(len(answer.ids) for answer in answers) / took_s,
        windows=windows,
        rows=len(answers) + sum(offered) / windows,
        window_s=took_s / windows,
        host_s=(new.host_s - old.host_s) / windows,
        draft_s=(new.draft_s - old.draft_s) / windows,
        accepted=tuple(hit / tried for hit, tried in zip(accepted, offered, strict=True) if tried),
        first_token_s=statistics.median(answer.first_s for answer in answers),
        same=sum(answer.ids == own.ids for answer, own in zip(answers, alone, strict=True)),
        host_gap_p99_s=new.host_gap_p99_s,
    )


async def time_prompt(engine: EngineHandle, prompts: Sequence[tuple[int, ...]]) -> PromptTime:
    """Reads prompts of one length, one after the other, the first to make what is missing; the quickest of the rest."""
    found = [(await ask(engine, prompt, 1)).first_s for prompt in prompts]
    return PromptTime(tokens=len(prompts[0]), first_token_s=min(found[1:]))
