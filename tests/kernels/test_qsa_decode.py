"""Block selection in decode: exact sets in one order for lengths around every edge, ties, odd scores, company."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from kernels.qsa.decode import Selection, SelectScratch, select_decode
from kernels.window import WindowRows
from tests.kernels.windows import Span, window_rows

HEADS, DIM, BLOCK, PAGE_BLOCKS = 3, 20, 4, 2
NAN = float("nan")


@dataclass(frozen=True)
class Keys:
    """Block keys of all slots, queries of every (slot, position), and page tables."""

    pooled: torch.Tensor
    pages: torch.Tensor
    queries: torch.Tensor

    def query(self, rows: WindowRows) -> torch.Tensor:
        found = self.queries[rows.slot.long(), (rows.position % self.queries.shape[1]).long()].contiguous()
        found[int(rows.rows_used) :] = NAN
        return found


def make_keys(
    device: str, blocks: int, *, dtype: torch.dtype = torch.float32, distinct: int = 0, scale: float = 1.0
) -> Keys:
    """Keys of three slots of `blocks` blocks in shuffled pages; `distinct` limits how many different ones there are."""
    generator = torch.Generator().manual_seed(blocks + distinct)
    pages = -(-blocks // PAGE_BLOCKS)
    pooled = torch.randn((3 * pages + 1, PAGE_BLOCKS, DIM), generator=generator) * scale
    if distinct:
        chosen = torch.randint(0, distinct, pooled.shape[:2], generator=generator)
        pooled = pooled.view(-1, DIM)[chosen]
    pooled[-1] = NAN
    table = torch.randperm(3 * pages, generator=generator).view(3, pages)
    table = torch.cat((table, torch.full((1, pages), 3 * pages))).to(torch.int32)
    own = torch.float32 if dtype == torch.float32 else torch.float16
    queries = torch.randn((4, 16, HEADS, DIM), generator=generator).to(own)
    return Keys(pooled.to(dtype).to(device), table.to(device), queries.to(device))


def scratch_for(keys: Keys, rows: int) -> SelectScratch:
    blocks = keys.pages.shape[1] * PAGE_BLOCKS
    scratch = SelectScratch.empty(rows=rows, longest_blocks=blocks, device=keys.pooled.device)
    for tensor in (scratch.scores, scratch.list_bits, scratch.list_block):
        tensor.fill_(-7)
    return scratch


def select(
    keys: Keys, spans: list[Span], *, bucket: int, budget: int, scratch: SelectScratch | None = None, parts: int = 2
) -> Selection:
    rows = window_rows(spans, bucket=bucket, slots=3, device=str(keys.pooled.device))
    out = Selection.empty(rows=bucket, budget_blocks=budget, device=keys.pooled.device)
    out.blocks.fill_(-1)
    out.places.fill_(-1)
    select_decode(
        keys.query(rows),
        keys.pooled,
        rows,
        pages=keys.pages,
        block_tokens=BLOCK,
        scratch=scratch or scratch_for(keys, bucket),
        out=out,
        programs=parts,
    )
    return out


def check(keys: Keys, spans: list[Span], out: Selection, scratch: SelectScratch, budget: int) -> None:
    """The set equals the exact one of the device's own scores, and these equal float64 ones; two rising runs."""
    row = 0
    for span in spans:
        table = keys.pages[span.slot].long()
        own = keys.pooled[table].flatten(0, 1)
        for position in range(span.start, span.start + span.count):
            known = (position + 1) // BLOCK
            if known <= budget:
                wanted = list(range(known))
            else:
                query = keys.queries[span.slot, position % 16].double()
                exact = torch.relu(query @ own[:known].double().t()).sum(0)
                scores = scratch.scores[row, :known]
                torch.testing.assert_close(scores.double(), exact, rtol=2e-5, atol=1e-6 * float(exact.max()))
                wanted = sorted(torch.sort(scores, descending=True, stable=True).indices[:budget].tolist())
            blocks = out.blocks[row, : len(wanted)].long()
            assert sorted(blocks.tolist()) == wanted, (span, position)
            assert (blocks.diff() < 0).sum() <= (known > budget)
            places = table[blocks // PAGE_BLOCKS] * PAGE_BLOCKS + blocks % PAGE_BLOCKS
            assert out.places[row, : len(wanted)].tolist() == places.tolist()
            row += 1


CASES: dict[str, tuple[int, int, list[Span], dict[str, float]]] = {
    "shortest": (8, 5, [Span(0, 0, 3, 1), Span(1, 2, 3, 1)], {}),
    "around-the-budget": (8, 5, [Span(0, 18, 7, 1), Span(2, 23, 2, 1)], {}),
    "past-tiles": (150, 6, [Span(1, 595, 3, 1), Span(0, 261, 1, 1)], {}),
    "more-rows-than-a-group": (12, 3, [Span(0, 30, 11, 1)], {}),
    "one-block": (80, 1, [Span(2, 317, 2, 1)], {}),
    "three-keys": (140, 7, [Span(0, 555, 2, 1)], {"distinct": 3}),
    "one-key": (140, 7, [Span(0, 555, 2, 1)], {"distinct": 1}),
    "under-the-bins": (100, 9, [Span(0, 397, 2, 1)], {"scale": 1e-5}),
    "over-the-bins": (100, 9, [Span(0, 397, 2, 1)], {"scale": 1e4}),
    "nothing-positive": (70, 9, [Span(0, 277, 2, 1)], {"scale": 0.0}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_exact_best_blocks(device: str, name: str) -> None:
    """Twice with the same scratch, so that it is seen to clean up after itself."""
    blocks, budget, spans, odd = CASES[name]
    keys = make_keys(device, blocks, distinct=int(odd.get("distinct", 0)), scale=odd.get("scale", 1.0))
    bucket = sum(span.count for span in spans) + 1
    scratch = scratch_for(keys, bucket)
    for _ in range(2):
        out = select(keys, spans, bucket=bucket, budget=budget, scratch=scratch)
        check(keys, spans, out, scratch, budget)
        assert (out.blocks[-1] == -1).all()
        assert (scratch.histogram == 0).all()
        assert (scratch.tickets == 0).all()


def test_more_candidates_than_registers_hold(device: str) -> None:
    """Very many equal scores go through memory, and are still split at the lower block."""
    keys = make_keys(device, 1200, distinct=2)
    spans = [Span(0, 4799, 1, 1)]
    scratch = scratch_for(keys, 1)
    out = select(keys, spans, bucket=1, budget=300, scratch=scratch)
    check(keys, spans, out, scratch, 300)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["exact", "bf16", "fp16"])
def test_company_and_programs_change_nothing(device: str, dtype: torch.dtype) -> None:
    keys = make_keys(device, 90, dtype=dtype)
    budget = 6
    alone = [select(keys, [Span(0, at, 1, 1)], bucket=1, budget=budget, parts=1).places for at in range(352, 356)]
    spans = [Span(1, 100, 2, 1), Span(0, 352, 4, 1)]
    together = select(keys, spans, bucket=8, budget=budget, parts=3)
    assert torch.equal(torch.cat(alone), together.places[2:6])


def test_refusals(device: str) -> None:
    keys = make_keys(device, 20)
    with pytest.raises(ValueError, match="allowed are 1 to 2047"):
        select(keys, [Span(0, 3, 1, 1)], bucket=1, budget=4000)
    small = SelectScratch.empty(rows=1, longest_blocks=10, device=device)
    with pytest.raises(ValueError, match="a context may have 20"):
        select(keys, [Span(0, 3, 1, 1)], bucket=1, budget=2, scratch=small)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("position", [2047, 2051, 131_070, 1_048_574], ids=str)
def test_long_contexts(position: int) -> None:
    keys = make_keys("cuda", (position + 8) // BLOCK, dtype=torch.float16)
    spans = [Span(0, position, 4, 1)]
    scratch = scratch_for(keys, 4)
    for _ in range(2):
        out = select(keys, spans, bucket=4, budget=512, scratch=scratch, parts=33)
        check(keys, spans, out, scratch, 512)
