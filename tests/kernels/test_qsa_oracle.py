"""Selection in decode windows sees what the oracles see, token by token, in exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import appliance.model.qwen4exp.forward as forward
from appliance.model.window import Span as ModelSpan
from appliance.model.window import Window
from kernels.compiled.scalar import norm_into
from kernels.matrix.op import multiply
from kernels.qsa.decode import Selection, SelectScratch, select_decode
from kernels.rope.rotate import rotate
from tests.kernels.windows import Span, window_rows
from tests.model.models import ORACLE, load, open_slot

ROWS, PAGE_BLOCKS = 40, 2


def choices(query: torch.Tensor, pooled: torch.Tensor, *, budget: int, block: int, device: str) -> np.ndarray:
    """Visible tokens bool [rows, rows] of one text, selected in windows of 40 rows; without a card in every third."""
    length, blocks = query.shape[0], pooled.shape[0]
    pages = -(-blocks // PAGE_BLOCKS)
    pool = torch.zeros(pages + 1, PAGE_BLOCKS, pooled.shape[1])
    pool.view(-1, pooled.shape[1])[:blocks] = pooled
    table = torch.arange(pages, dtype=torch.int32).repeat(2, 1).to(device)
    scratch = SelectScratch.empty(rows=ROWS, longest_blocks=pages * PAGE_BLOCKS, device=device)
    seen = np.zeros((length, length), dtype=bool)
    for first in range(0, length, ROWS if device == "cuda" else 3 * ROWS):
        count = min(ROWS, length - first)
        rows = window_rows([Span(0, first, count, 1)], bucket=ROWS, slots=1, device=device)
        own = torch.zeros(ROWS, *query.shape[1:])
        own[:count] = query[first : first + count]
        out = Selection.empty(rows=ROWS, budget_blocks=budget, device=device)
        select_decode(
            own.to(device), pool.to(device), rows, pages=table, block_tokens=block, scratch=scratch, out=out,
            programs=4,
        )  # fmt: skip
        for row in range(count):
            complete = (first + row + 1) // block
            for chosen in out.blocks[row, : min(budget, complete)].tolist():
                seen[first + row, chosen * block : (chosen + 1) * block] = True
            seen[first + row, complete * block : first + row + 1] = True
    return seen


@pytest.mark.parametrize("case", ["base4", "hc2", "moe32", "realhead"])
def test_visible_tokens_equal_the_oracles(device: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(ORACLE / case / "model.gguf")
    open_slot(model, 1)
    with np.load(ORACLE / case / "expected.npz") as arrays:
        ids = arrays["p300_ids"]
        masks = [arrays[name] for name in sorted(arrays.files) if name.startswith("p300_L") and "qsa" in name]
    asked: list[tuple[torch.Tensor, torch.Tensor, int]] = []
    run, spec = forward.mix_attention, model._spec
    first = 2 * (spec.query_heads + spec.kv_heads) * spec.head_dim

    def watch(x, layer, rows, *, state, index, eps):
        found, weights, places = run(x, layer, rows, state=state, index=index, eps=eps), layer.mixer, rows.places
        if weights.index_heads:
            keys = state.arrays.pooled[index]
            width = keys.shape[2]
            raw = multiply(found[0], weights.mix)[:, first : first + weights.index_heads * width]
            raw = raw.copy().reshape(-1, weights.index_heads, width)
            query = np.empty_like(raw)
            for row, head in np.ndindex(*raw.shape[:2]):
                norm_into(query[row, head], raw[row, head], weights.query_norm, eps)
                rotate(query[row, head], places.cos[row], places.sin[row])
            pooled = keys[places.pages[0]].reshape(-1, width)
            asked.append((torch.from_numpy(query), torch.from_numpy(pooled), weights.budget_blocks))
        return found

    monkeypatch.setattr(forward, "mix_attention", watch)
    window = Window((ModelSpan(slot=1, start=0, tokens=tuple(int(token) for token in ids)),))
    model.forward_at(window, tap=lambda name, value: None)  # watched, it goes block by block
    assert len(asked) == len(masks) > 0
    for (query, pooled, budget), bits in zip(asked, masks, strict=True):
        wanted = np.unpackbits(bits, axis=1)[:, : len(ids)].astype(bool)
        found = choices(query, pooled, budget=budget, block=spec.block_tokens, device=device)
        done = found.any(1)
        assert done.sum() >= 2 * ROWS
        assert np.array_equal(found[done], wanted[done])
