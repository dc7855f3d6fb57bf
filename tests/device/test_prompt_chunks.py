"""Prompt chunks against the oracles and against windows over the same rows: each goes on with what the other left."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.model.interface import Ask
from appliance.model.qwen4exp.device import prompt_experts
from appliance.model.qwen4exp.device.model import DeviceModel
from appliance.model.qwen4exp.device.prompt_turn import chunk_tail
from appliance.model.window import Span, Window
from tests.device.models import ON_CARD, load, open_slot, window
from tests.device.test_oracle_device import CASES, expected, near

CHUNK = 256 if ON_CARD else 72


@cache
def loaded(case: str, **plan: object) -> DeviceModel:
    return load(case, tokens=320 if ON_CARD else 96, chunk_rows=CHUNK, **plan)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def read(
    model: DeviceModel, ids: NDArray[np.int64], parts: tuple[int, ...], *, following: int
) -> list[NDArray[np.float32]]:
    """Reads a prompt in chunks of these lengths; the logits of the last row of each."""
    found, done = [], 0
    for size in parts:
        after = int(ids[done + size]) if done + size < len(ids) else following
        found.append(last_row(model, [int(t) for t in ids[done : done + size]], following=after))
        done += size
    return found


def last_row(model: DeviceModel, tokens: list[int], *, following: int, ask: int = 0) -> NDArray[np.float32]:
    logits, _ = window(model, 1, tokens, following=following, ask=ask, logits_from=len(tokens) - 1)
    return logits


@pytest.mark.parametrize("parts", [(18, 2), (14, 6)] if ON_CARD else [(17, 1)], ids=str)
def test_a_chunk_and_windows_after_it(case: str, parts: tuple[int, ...]) -> None:
    """Everything a window needs is left: keys and values, block keys, both convolutions, states, n-gram tokens."""
    arrays, model = expected(case), loaded(case)
    open_slot(model, 1)
    ends = np.cumsum(parts) - 1
    found = read(model, arrays["p20_ids"], parts, following=0)
    near(np.concatenate(found), arrays["p20_logits"][ends])


@pytest.mark.parametrize("parts", [(70,), (23, 1, 46)] if ON_CARD else [(23, 47)], ids=str)
@pytest.mark.parametrize("case", CASES if ON_CARD else CASES[:1])
def test_the_draft_layer_has_read_along(case: str, parts: tuple[int, ...]) -> None:
    arrays, model = expected(case), loaded(case)
    open_slot(model, 1)
    ids, following = arrays["p70_ids"], int(arrays["mtp70_next_ids"][-1])
    for number, logits in enumerate(read(model, ids, parts[:-1], following=0)):
        near(logits, arrays["p70_logits"][sum(parts[: number + 1]) - 1][None])
    tokens = [int(t) for t in ids[sum(parts[:-1]) :]]
    logits, draft = window(model, 1, tokens, following=following, ask=3, logits_from=len(tokens) - 1)
    near(logits, arrays["p70_logits"][-1:])
    assert list(draft.tokens) == arrays["mtp70_global_dense_chain_ids"].tolist()


@pytest.mark.skipif(not ON_CARD, reason="needs a CUDA card: minutes in the interpreter")
def test_a_prompt_longer_than_what_is_visible(case: str) -> None:
    arrays, model = expected(case), loaded(case)
    open_slot(model, 1)
    parts = (CHUNK, 300 - CHUNK)
    near(np.concatenate(read(model, arrays["p300_ids"], parts, following=0)), arrays["p300_logits"][[CHUNK - 1, 299]])


def test_a_step_draws_after_a_chunk() -> None:
    """The token and the drafts of a chunk's step are those of forward and advance."""
    arrays, model = expected("base4"), loaded("base4")
    ids = tuple(int(t) for t in arrays["p20_ids"][:16])
    open_slot(model, 0)
    (found,) = model.step(Window((Span(slot=0, start=0, tokens=ids, logits_from=15),)), [Ask(draft_max=2)])
    assert found.tokens == (int(arrays["p20_logits"][15].argmax()),)
    assert (found.kept, found.finite, model.length(0)) == (16, (True,), 16)
    open_slot(model, 1)
    _, draft = window(model, 1, list(ids), following=found.tokens[0], ask=2, logits_from=15)
    assert found.drafts == draft.tokens
    assert model.length(1) == 16


def test_a_chunk_in_the_middle_of_a_prompt_draws_nothing() -> None:
    ids = tuple(int(t) for t in expected("base4")["p20_ids"])
    model = loaded("base4")
    open_slot(model, 0)
    span = Span(slot=0, start=0, tokens=ids[:15], logits_from=15)
    (found,) = model.step(Window((span,)), [Ask(next_token=ids[15])])
    assert (found.tokens, found.kept, found.drafts) == ((), 15, ())
    assert model.length(0) == 15


@pytest.mark.parametrize("share", [0.0, 0.5] if ON_CARD else [0.5], ids=str)
def test_experts_that_land_ahead_give_the_same_bits(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several pieces a layer, more of them than there are landing places; warmed first, which leaves no trace."""
    monkeypatch.setattr(prompt_experts, "PIECE_EXPERTS", 3)
    whole = loaded("base4")
    store = whole.parts.stages[0].store
    assert store is not None
    part = load(
        "base4", tokens=whole.plan.max_tokens, chunk_rows=15, expert_pool_bytes=round(store.pool.nbytes * share)
    )
    part.launcher.warm_prompts()
    ids = [int(t) for t in expected("base4")["p20_ids"][:15]]
    outs = []
    for model in (whole, part):
        open_slot(model, 1)
        outs.append(last_row(model, ids, following=1))
    assert np.array_equal(outs[0], outs[1])
    part.close()


@pytest.mark.parametrize("split", [(1, 3)], ids=str)
def test_stages_give_the_same_bits(split: tuple[int, ...]) -> None:
    ids = [int(t) for t in expected("base4")["p20_ids"]]
    outs = []
    for model in (loaded("base4"), load("base4", tokens=96, chunk_rows=CHUNK, layer_split=split)):
        open_slot(model, 1)
        outs.append(last_row(model, ids[:14], following=ids[14]))
    assert np.array_equal(outs[0], outs[1])


@pytest.mark.parametrize(
    ("spans", "chunk"),
    [
        pytest.param([(14, 0)], True, id="one row more than a window takes"),
        pytest.param([(13, 0)], False, id="what a window takes"),
        pytest.param([(64, 0)], True, id="the longest"),
        pytest.param([(65, 0)], False, id="too long"),
        pytest.param([(20, 1)], False, id="with a draft"),
        pytest.param([(20, 0), (1, 0)], False, id="in company"),
        pytest.param([(20, 0, 5)], False, id="with logits of more than the last row"),
    ],
)
def test_which_windows_are_chunks(spans: list[tuple[int, ...]], chunk: bool) -> None:
    """Spans of (rows, drafts, first row of logits if not none)."""
    made = Window(
        tuple(
            Span(slot=slot, start=5, tokens=tuple(range(rows)), draft_count=drafts, logits_from=(*logits, rows)[0])
            for slot, (rows, drafts, *logits) in enumerate(spans)
        )
    )
    found = chunk_tail(made, chunk_rows=64)
    assert (found is not None) == chunk
    if found is not None:
        rows = spans[0][0]
        (last,) = found.window.spans
        assert (found.slot, found.start, found.before) == (0, 5, rows - 1)
        assert (last.start, last.tokens, last.logits_from) == (5 + rows - 1, (rows - 1,), 1)
