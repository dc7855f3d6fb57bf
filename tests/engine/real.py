"""The built-in model for engine tests, its chats, and the comparison that allows only near-ties to differ."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from appliance.engine.config import EngineConfig
from appliance.gguf.reader import open_set
from appliance.model.interface import LoadedModel
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.load import load_model
from appliance.model.qwen4exp.spec import read_spec
from tests.engine.harness import Running, collect

BUILTIN = Path(__file__).parents[2] / "appliance/data/strata-tiny.gguf"
EXPECTED = Path(__file__).parents[1] / "data/strata-tiny-expected.json"
CONFIG = EngineConfig(slots=8, page_tokens=64, pages=512, max_tokens=4096, prompt_chunk=256, draft_max=4)
CARD_CONFIG = replace(CONFIG, prompt_chunk=32, max_rows=40, span_rows=13, watchdog_s=900.0)
STOPS = frozenset({8176, 8178})
# Two logits closer than this may change places with the order in which floats are summed.
NEAR_TIE = 1e-4


@functools.cache
def builtin(device: str = "cpu", *, kv_type: str = "f32") -> LoadedModel:
    """The model, loaded once for all tests of a process."""
    plan = LoadPlan(
        device=device,
        kv_type=kv_type,
        slots=CONFIG.slots,
        pages=CONFIG.pages,
        page_tokens=CONFIG.page_tokens,
        max_tokens=CONFIG.max_tokens,
        max_window_rows=(CONFIG if device == "cpu" else CARD_CONFIG).window_rows,
        draft_max=CONFIG.draft_max,
    )
    return load_model(read_spec(open_set(BUILTIN)), plan=plan, progress=lambda stage, percent: None)


@functools.cache
def chats() -> tuple[tuple[int, ...], ...]:
    """Eight different chats, from one line to three turns, each waiting for its answer."""
    cases = json.loads(EXPECTED.read_text())["cases"]
    asked = [tuple(case["prompt_ids"]) for case in cases]
    # A turn is over at the end-of-turn token; a newline (198) leads to the next one.
    turns = [(*case["prompt_ids"], *case["output_ids"], 198) for case in cases]
    return (*asked, turns[0] + asked[1], turns[2] + turns[1] + asked[4])


def long_prompt(length: int) -> tuple[int, ...]:
    """A chat of exactly `length` tokens: turns over and over, the last question whole."""
    question = chats()[5]
    turns = chats()[7][: -len(chats()[4])]
    body = (turns * (length // len(turns) + 1))[: length - len(question)]
    return body + question


async def require_same(run: Running, prompt: Sequence[int], found: Sequence[int], expected: Sequence[int]) -> None:
    """Compares two greedy answers; where they part, the two best logits must be within NEAR_TIE, which is printed.

    After such a place both answers are right but different, so the rest of `found` is compared with a fresh run of its
    own from there.
    """
    assert len(found) == len(expected)
    prompt, found, expected = list(prompt), list(found), list(expected)
    while found != expected:
        place = next(index for index, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])
        best = await collect(run.ask([*prompt, *expected[:place]], 1, top_logprobs=2))
        top = best.logprobs[0].top
        gap = top[0][1] - top[1][1]
        print(f"token {place}: {found[place]} instead of {expected[place]}, gap of the two best logits {gap:.2e}")
        assert {token for token, _ in top} == {found[place], expected[place]}
        assert gap <= NEAR_TIE
        prompt += found[: place + 1]
        found = found[place + 1 :]
        expected = (await collect(run.ask(prompt, len(found)))).ids if found else []


async def require_greedy(run: Running, prompt: Sequence[int], found: Sequence[int]) -> None:
    """Checks a greedy answer against one pass over prompt and answer together: each token must be the likeliest.

    That pass knows neither drafts nor decoding, so it is a reference of its own.
    """
    whole = (*prompt, *found)
    scores = (await collect(run.ask(whole, 0, prompt_logprobs=1))).scores
    assert scores is not None
    for place, score in enumerate(scores.logprobs[len(prompt) :]):
        assert score is not None
        gap = score.top[0][1] - score.logprob
        if gap:
            print(f"token {place}: {score.token_id} instead of {score.top[0][0]}, gap {gap:.2e}")
        assert gap <= NEAR_TIE, f"token {place} of the answer is not the likeliest"
