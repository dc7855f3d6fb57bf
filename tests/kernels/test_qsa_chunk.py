"""Block selection of prompt chunks: the exact set of every row, in the lists of its group, around every edge."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from kernels.chunk import Chunk
from kernels.qsa import prompt as many
from kernels.qsa.prompt import ChunkSelection, select_chunk

HEADS, DIM, BLOCK, PAGE_BLOCKS, SLOTS = 3, 20, 4, 2, 3


@dataclass(frozen=True)
class Keys:
    """Block keys of all slots in shuffled pages, and 16 queries that positions take in turn."""

    pooled: torch.Tensor
    pages: torch.Tensor
    queries: torch.Tensor


def make_keys(
    device: str, blocks: int, *, dtype: torch.dtype = torch.float32, distinct: int = 0, scale: float = 1.0
) -> Keys:
    """`distinct` limits how many different keys there are; all values are then whole, so that equal scores are."""
    generator = torch.Generator().manual_seed(blocks + distinct)
    pages = -(-blocks // PAGE_BLOCKS)
    pooled = torch.randn((SLOTS * pages + 1, PAGE_BLOCKS, DIM), generator=generator) * scale
    queries = torch.randn((16, HEADS, DIM), generator=generator)
    if distinct:
        pooled = pooled.round().view(-1, DIM)[torch.randint(0, distinct, pooled.shape[:2], generator=generator)]
        queries = queries.round()
    pooled[-1] = float("nan")
    table = torch.randperm(SLOTS * pages, generator=generator).view(SLOTS, pages)
    table = torch.cat((table, torch.full((1, pages), SLOTS * pages))).to(torch.int32)
    own = torch.float32 if dtype == torch.float32 else torch.float16
    return Keys(pooled.to(dtype).to(device), table.to(device), queries.to(own).to(device))


def queries(keys: Keys, start: int, rows: int) -> torch.Tensor:
    return keys.queries[torch.arange(start, start + rows, device=keys.queries.device) % 16].contiguous()


def select(keys: Keys, slot: int, start: int, rows: int, *, budget: int, group: int) -> ChunkSelection | None:
    chunk = Chunk.of(slot, start, torch.zeros(rows, dtype=torch.int32, device=keys.pages.device))
    return select_chunk(
        queries(keys, start, rows), keys.pooled, chunk,
        pages=keys.pages, block_tokens=BLOCK, budget_blocks=budget, group_rows=group,
    )  # fmt: skip


def chosen(selection: ChunkSelection, row: int) -> list[int]:
    """What one row chose, read from its group's list."""
    group, member = divmod(row, selection.rows)
    count = int(selection.counts[group])
    blocks, members = selection.blocks[group, :count], selection.members[group, :count]
    assert (blocks.diff() > 0).all()
    assert (members != 0).all()
    return blocks[(members >> member & 1) == 1].tolist()


def best(keys: Keys, slot: int, start: int, rows: int, budget: int) -> list[list[int]]:
    """The choice by float64 scores, equal ones by the lower block."""
    own = keys.pooled[keys.pages[slot].long()].flatten(0, 1).double()
    found = []
    for position, query in enumerate(queries(keys, start, rows).double(), start):
        scores = torch.relu(query @ own[: (position + 1) // BLOCK].t()).sum(0)
        found.append(sorted(torch.sort(scores, descending=True, stable=True).indices[:budget].tolist()))
    return found


# blocks, budget, rows of a group, slot, start, rows, what is odd about the keys
CASES: dict[str, tuple[int, int, int, int, int, int, dict[str, float]]] = {
    "from-the-start": (12, 5, 4, 0, 0, 43, {}),
    "around-the-budget": (8, 5, 10, 2, 17, 9, {}),
    "past-tiles": (150, 6, 3, 1, 521, 70, {}),
    "one-block": (80, 1, 16, 2, 300, 5, {}),
    "three-keys": (140, 7, 10, 0, 551, 4, {"distinct": 3}),
    "one-key": (140, 7, 10, 0, 551, 4, {"distinct": 1}),
    "nothing-positive": (70, 9, 10, 0, 270, 6, {"scale": 0.0}),
}


@pytest.mark.parametrize("listed", [4096, 32], ids=["in-registers", "through-lists"])
@pytest.mark.parametrize("name", CASES)
def test_every_row_chooses_its_best_blocks(
    device: str, name: str, listed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, budget, group, slot, start, rows, odd = CASES[name]
    keys = make_keys(device, blocks, distinct=int(odd.get("distinct", 0)), scale=odd.get("scale", 1.0))
    monkeypatch.setattr(many, "LIST", listed)
    monkeypatch.setattr(many, "SCORE_VALUES", 20 * blocks)
    selection = select(keys, slot, start, rows, budget=budget, group=group)
    assert selection is not None
    wanted = best(keys, slot, start, rows, budget)
    for row in range(rows):
        assert chosen(selection, row) == wanted[row], row


@pytest.mark.parametrize("scale", [1e-5, 1e4], ids=["under-the-bins", "over-the-bins"])
def test_scores_beyond_the_bins(device: str, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "LIST", 64)
    keys = make_keys(device, 100, scale=scale)
    selection = select(keys, 0, 392, 6, budget=9, group=4)
    assert selection is not None
    wanted = best(keys, 0, 392, 6, 9)
    assert [chosen(selection, row) for row in range(6)] == wanted


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_narrow_keys(device: str, dtype: torch.dtype) -> None:
    """Products of fp16 are exact in float32 up to the order of their sums; these scores lie further apart."""
    keys = make_keys(device, 40, dtype=dtype)
    selection = select(keys, 1, 120, 7, budget=6, group=10)
    assert selection is not None
    assert [chosen(selection, row) for row in range(7)] == best(keys, 1, 120, 7, 6)


def test_nothing_to_choose_is_dense(device: str) -> None:
    keys = make_keys(device, 8)
    assert select(keys, 0, 0, 23, budget=5, group=4) is None
    assert select(keys, 0, 0, 24, budget=5, group=4) is not None


def test_refusals(device: str) -> None:
    keys = make_keys(device, 4)
    with pytest.raises(ValueError, match="5 blocks, but pages for 4"):
        select(keys, 0, 0, 20, budget=2, group=4)
    with pytest.raises(ValueError, match="groups of 32 rows"):
        select(keys, 0, 0, 8, budget=1, group=32)
