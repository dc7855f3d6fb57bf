"""Selection in decode windows sees what the oracles see, token by token, in exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import appliance.model.qwen4exp.attention as attention
from appliance.model.window import Span as ModelSpan
from appliance.model.window import Window
from kernels.qsa.decode import Selection, SelectScratch, select_decode
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
    select = attention.select_blocks

    def watch(query, pooled, complete, *, budget_blocks):
        asked.append((query[0].clone(), pooled[0].clone(), budget_blocks))
        return select(query, pooled, complete, budget_blocks=budget_blocks)

    monkeypatch.setattr(attention, "select_blocks", watch)
    model.forward(Window((ModelSpan(slot=1, start=0, tokens=tuple(int(token) for token in ids)),)))
    assert len(asked) == len(masks) > 0
    for (query, pooled, budget), bits in zip(asked, masks, strict=True):
        wanted = np.unpackbits(bits, axis=1)[:, : len(ids)].astype(bool)
        found = choices(query, pooled, budget=budget, block=model._spec.block_tokens, device=device)
        done = found.any(1)
        assert done.sum() >= 2 * ROWS
        assert np.array_equal(found[done], wanted[done])
