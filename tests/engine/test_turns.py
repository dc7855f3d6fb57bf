"""Conversations of several turns. Nothing is kept of earlier ones, so every turn equals a run of its own (CACHE-*)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from appliance.engine.handle import Usage
from tests.engine import harness
from tests.engine.harness import collect, running
from tests.engine.real import CONFIG, builtin, chats, long_prompt, require_same

TOKENS = 12
NEWLINE = 198
play = functools.partial(harness.play, limit_s=600)
Ids = tuple[int, ...]


@functools.cache
def cold(prompt: Ids) -> Ids:
    """The greedy answer of an engine that has seen nothing else, without drafts."""
    found: list[int] = []

    async def scenario() -> None:
        async with running(builtin(), replace(CONFIG, draft_max=0)) as run:
            found.extend((await collect(run.ask(prompt, TOKENS))).ids)

    play(scenario)
    return tuple(found)


def after(prompt: Ids, question: Ids) -> Ids:
    """The next turn: what was asked, what was answered, what is asked now."""
    return (*prompt, *cold(prompt), NEWLINE, *question)


def turns(case: str) -> list[Ids]:
    """The prompts of a case, in the order in which they come."""
    first, second, third = chats()[:3]
    short = chats()[1][:40]
    whole = after(after(first, second), third)
    return {
        "CACHE-01 a long chat and a short follow-up": [long_prompt(500), after(long_prompt(500), second)],
        "CACHE-01 a short first prompt": [short, after(short, second)],
        "CACHE-02 the answer is replayed without what came before it": [first, (*first, *cold(first)[4:], *second)],
        "CACHE-03 two chats take turns": [first, second, after(first, third), after(second, third)],
        "CACHE-08 the last answer once more": [whole, whole],
        "CACHE-08 an earlier turn is edited, and two branches": [
            whole, after((*first[:-2], *first[-1:]), second), after(first, third), after(first, second)
        ],
        "CACHE-09 the level is switched and switched back": [(*second[:3], *whole), (*third[:3], *whole), whole],
    }[case]  # fmt: skip


CASES = (
    "CACHE-01 a long chat and a short follow-up",
    "CACHE-01 a short first prompt",
    "CACHE-02 the answer is replayed without what came before it",
    "CACHE-03 two chats take turns",
    "CACHE-08 the last answer once more",
    "CACHE-08 an earlier turn is edited, and two branches",
    "CACHE-09 the level is switched and switched back",
)


@pytest.mark.parametrize("case", CASES)
def test_every_turn_is_read_anew_and_answers_as_a_cold_run(case: str) -> None:
    """One slot, so that every turn meets what the one before left; nothing is said to be cached (CACHE-10)."""
    prompts = turns(case)
    wanted = [cold(prompt) for prompt in prompts]

    async def scenario() -> None:
        async with running(builtin(), replace(CONFIG, slots=1)) as run:
            for prompt, ids in zip(prompts, wanted, strict=True):
                answer = await collect(run.ask(prompt, TOKENS))
                await require_same(run, prompt, answer.ids, ids)
                usage = answer.finished.usage
                assert isinstance(usage, Usage)
                assert (usage.prompt_tokens, usage.cached_tokens) == (len(prompt), 0)
                assert run.status().cache.pages_used == 0, "nothing is kept, so nothing grows"

    play(scenario)


@pytest.mark.parametrize("case", [CASES[0], CASES[5]])
def test_the_same_turn_five_ways(case: str) -> None:
    """CACHE-06: cold and after other turns, without drafts and with, and beside a second user."""
    prompts = turns(case)
    asked, wanted = prompts[-1], cold(prompts[-1])

    async def scenario() -> None:
        for draft_max in (0, CONFIG.draft_max):
            async with running(builtin(), replace(CONFIG, slots=2, draft_max=draft_max)) as run:
                for round_number in range(2):
                    answer = await collect(run.ask(asked, TOKENS))
                    await require_same(run, asked, answer.ids, wanted)
                    for prompt in prompts[:-1] if round_number == 0 else ():
                        await collect(run.ask(prompt, TOKENS))
                if draft_max:
                    both = await asyncio.gather(*(collect(run.ask(p, TOKENS)) for p in (asked, prompts[0])))
                    await require_same(run, asked, both[0].ids, wanted)
                    assert both[0].finished.usage.drafts_accepted > 0

    play(scenario)


def rounds(seed: int) -> list[Sequence[Ids]]:
    """28 rounds of two to four of some prompts."""
    random = Random(seed)
    prompts = [*chats(), *(chat[: len(chat) - 7] for chat in chats()[:4])]
    return [random.sample(prompts, random.randint(2, 4)) for _ in range(28)]


def test_nobody_is_answered_from_another_conversation() -> None:
    """CACHE-05: eight chats, then rounds of several at once in fewer slots, each compared with a run of its own."""
    played = [list(chats()), *rounds(5)]
    wanted = {prompt: cold(prompt) for some in played for prompt in some}

    async def scenario() -> None:
        async with running(builtin(), replace(CONFIG, slots=3)) as run:
            for some in played:
                answers = await asyncio.gather(*(collect(run.ask(prompt, TOKENS)) for prompt in some))
                for prompt, answer in zip(some, answers, strict=True):
                    await require_same(run, prompt, answer.ids, wanted[prompt])
            assert run.status().cache.pages_used == 0

    play(scenario)
