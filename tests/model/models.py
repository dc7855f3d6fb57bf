"""Loads small models for tests, and runs them the way the engine does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.gguf.reader import open_set
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.cpu import Qwen4Exp
from appliance.model.qwen4exp.load import load_model
from appliance.model.qwen4exp.spec import ModelSpec, read_spec
from appliance.model.window import Commit, Draft, Span, Window
from tests.builders.parts import in_parts

ROOT = Path(__file__).parents[2]
ORACLE = ROOT / "tests" / "oracle"
TINY = ROOT / "appliance" / "data" / "strata-tiny.gguf"
PAGE = 16


@cache
def spec_of(path: Path, draft: Path | None = None) -> ModelSpec:
    """Reads a spec once."""
    return read_spec(open_set(path), draft=None if draft is None else open_set(draft))


def plan_of(*, slots: int = 2, tokens: int = 320, draft_max: int = 4, **plan: str) -> LoadPlan:
    """Pages for every slot at its longest."""
    pages = -(-(tokens + 8) // PAGE)
    return LoadPlan(
        device="cpu",
        slots=slots,
        pages=slots * pages,
        page_tokens=PAGE,
        max_tokens=tokens + 8,
        max_window_rows=512,
        draft_max=draft_max,
        **plan,
    )


def load(
    path: Path, *, draft: Path | None = None, slots: int = 2, tokens: int = 320, draft_max: int = 4, **plan: str
) -> Qwen4Exp:
    """A fresh model with pages for every slot."""
    sizes = plan_of(slots=slots, tokens=tokens, draft_max=draft_max, **plan)
    return load_model(spec_of(path, draft), plan=sizes, progress=lambda sentence, percent: None)


def open_slot(model: Qwen4Exp, slot: int, *, tokens: int = 320) -> None:
    """Opens a slot with scattered pages: every slot's pages lie between those of the others."""
    model.open_slot(slot)
    slots = len(model.state.lengths)
    count = min(-(-(tokens + 8) // PAGE), (model.state.keys.shape[2] - 1) // slots)
    model.set_pages(slot, [slots * i + slot for i in range(count)])


def greedy(
    logits: torch.Tensor, *, slots: Sequence[int], positions: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest token and its probability."""
    best = logits.argmax(1)
    return best, torch.softmax(logits, 1).gather(1, best.unsqueeze(1)).squeeze(1)


def step(
    model: Qwen4Exp, slot: int, tokens: Sequence[int], *, following: int = 0, kept: int | None = None, drafts: int = 0
) -> tuple[NDArray[np.float32], Draft]:
    """One window of one span, committed; returns its logits and the drafts."""
    span = Span(slot=slot, start=model.length(slot), tokens=tuple(int(t) for t in tokens))
    logits = model.forward(Window((span,)))
    commit = Commit(slot=slot, kept=kept or len(span.tokens), next_token=following, draft_max=drafts)
    draft = model.advance((commit,), greedy)[0]
    return logits.numpy(), draft


def read_in_parts(
    model: Qwen4Exp, slot: int, ids: Sequence[int], parts: Sequence[int], *, following: int = 0
) -> NDArray[np.float32]:
    """Reads a prompt in windows of these lengths (the last repeated); returns the logits of all rows."""
    found = [step(model, slot, some, following=after)[0] for some, after in in_parts(ids, parts, following=following)]
    return np.concatenate(found)
