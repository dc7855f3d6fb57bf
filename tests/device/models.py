"""Loads small models on the device under test, and runs them the way the engine does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.gguf.reader import open_set
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.model import DeviceModel, load_device_model
from appliance.model.qwen4exp.spec import ModelSpec, read_spec
from appliance.model.window import Commit, Draft, Span, Window
from tests.builders.parts import in_parts

ROOT = Path(__file__).parents[2]
ORACLE = ROOT / "tests" / "oracle"
ON_CARD = torch.cuda.is_available()
DEVICE = "cuda:0" if ON_CARD else "cpu"
PAGE = 16


@cache
def spec_of(case: str) -> ModelSpec:
    """Reads a spec once."""
    return read_spec(open_set(ORACLE / case / "model.gguf"))


def plan_of(*, slots: int = 2, tokens: int = 320, draft_max: int = 3, **plan: object) -> LoadPlan:
    """Exact arithmetic, launch by launch, pages for every slot at its longest."""
    pages = -(-(tokens + 8) // PAGE)
    sizes: dict[str, object] = {"kv_type": "f32", "exact": True, "ngram_home": "vram", "plain": True, **plan}
    return LoadPlan(
        device=DEVICE,
        slots=slots,
        pages=slots * pages,
        page_tokens=PAGE,
        max_tokens=tokens,
        max_window_rows=40,
        draft_max=draft_max,
        **sizes,  # type: ignore[arg-type]
    )


def load(case: str, *, slots: int = 2, tokens: int = 320 if ON_CARD else 40, **plan: object) -> DeviceModel:
    """A fresh model with pages for every slot."""
    return load_device_model(spec_of(case), plan_of(slots=slots, tokens=tokens, **plan), lambda sentence, percent: None)


def open_slot(model: DeviceModel, slot: int) -> None:
    """Opens a slot with scattered pages: every slot's pages lie between those of the others."""
    slots = model.plan.slots
    model.open_slot(slot)
    model.set_pages(slot, [slots * page + slot for page in range(model.plan.pages // slots)])


def greedy(
    logits: torch.Tensor, *, slots: Sequence[int], positions: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest token and its probability."""
    best = logits.argmax(1)
    return best, torch.softmax(logits, 1).gather(1, best.unsqueeze(1)).squeeze(1)


def window(
    model: DeviceModel,
    slot: int,
    tokens: Sequence[int],
    *,
    following: int,
    drafts: int = 0,
    ask: int = 0,
    kept: int = 0,
    logits_from: int = 0,
) -> tuple[NDArray[np.float32], Draft]:
    """One window of one span whose last `drafts` tokens are drafts, committed; its logits and the drafts proposed."""
    span = Span(
        slot=slot,
        start=model.length(slot),
        tokens=tuple(int(t) for t in tokens),
        draft_count=drafts,
        logits_from=logits_from,
    )
    logits = model.forward(Window((span,)))
    commit = Commit(slot=slot, kept=kept or len(span.tokens), next_token=following, draft_max=ask)
    return logits.cpu().numpy(), model.advance((commit,), greedy)[0]


def read(
    model: DeviceModel, slot: int, ids: Sequence[int], parts: Sequence[int], *, following: int
) -> NDArray[np.float32]:
    """Reads a prompt in windows of these lengths (the last repeated); the logits of all rows."""
    found = [window(model, slot, some, following=after)[0] for some, after in in_parts(ids, parts, following=following)]
    return np.concatenate(found)
