"""Block selection of a decode window on the device, exact for any context, in two launches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kernels.qsa._pick import pick
from kernels.qsa._score import score
from kernels.terms import check_tensor, launch_options
from kernels.window import MOST_ROWS, WindowRows

BINS = 256
MOST_CHUNKS = 32
TILE = 64
MOST_BLOCKS = 1 << 20


def chunks_of(longest_blocks: int) -> int:
    """Parts of a row's blocks that are counted, and then chosen from, by themselves; changes nothing but the time."""
    return max(1, min(MOST_CHUNKS, longest_blocks // TILE))


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectScratch:
    """Counters and scores of a selection; all layers of a window share it. It cleans up after itself.

    Attributes:
        scores: float32 [rows, blocks of the longest context].
        histogram: int32 [rows, chunks, 256], zero between launches.
        tickets: int32 [rows], zero between launches.
        list_bits, list_block: int32 [rows, blocks]: candidates of the deciding bin.
    """

    scores: torch.Tensor
    histogram: torch.Tensor
    tickets: torch.Tensor
    list_bits: torch.Tensor
    list_block: torch.Tensor

    @classmethod
    def empty(cls, *, rows: int, longest_blocks: int, device: torch.device | str) -> SelectScratch:
        """Scratch for contexts of up to `longest_blocks` complete blocks."""
        lists = [torch.empty((rows, longest_blocks), dtype=torch.int32, device=device) for _ in range(2)]
        return cls(
            scores=torch.empty((rows, longest_blocks), device=device),
            histogram=torch.zeros((rows, chunks_of(longest_blocks), BINS), dtype=torch.int32, device=device),
            tickets=torch.zeros(rows, dtype=torch.int32, device=device),
            list_bits=lists[0],
            list_block=lists[1],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The blocks each row sees besides its tail: `min(budget, complete blocks)` of them.

    Their order depends on the row's scores alone: those above some score by rising block, then the others likewise.

    Attributes:
        blocks: int32 [rows, budget], numbers in the row's context.
        places: int32 [rows, budget], in the pool: page * blocks of a page + block in the page.
    """

    blocks: torch.Tensor
    places: torch.Tensor

    @classmethod
    def empty(cls, *, rows: int, budget_blocks: int, device: torch.device | str) -> Selection:
        """To be filled by `select_decode`."""
        blocks, places = (torch.zeros((rows, budget_blocks), dtype=torch.int32, device=device) for _ in range(2))
        return cls(blocks=blocks, places=places)


def select_decode(
    query: torch.Tensor,
    pooled: torch.Tensor,
    rows: WindowRows,
    *,
    pages: torch.Tensor,
    block_tokens: int,
    scratch: SelectScratch,
    out: Selection,
    programs: int = 264,
    pdl: bool = False,
) -> None:
    """Chooses each row's best complete blocks: `score = sum over heads of relu(q . k)`, ties to the lower block.

    Lengths come from device memory and grids are fixed, so one captured launch serves any context. Rows whose blocks
    all fit the budget are not scored. Rows of one span read every block key once together.

    Args:
        query: [rows, heads, dim] from `prepare_attention`: float32 for float32 block keys (exact), else fp16.
        pooled: float32, bf16 or fp16 [pages + 1, blocks of a page, dim].
        rows: of the window.
        pages: int32 [slots + 1, pages].
        block_tokens: tokens of a block.
        scratch: for these rows.
        out: gets the choice.
        programs: of the score launch; changes nothing but the time.
        pdl: start before the launch before this one is done.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    count, heads, dim = query.shape
    exact = pooled.dtype == torch.float32
    check_tensor("indexer queries", query, (rows.rows, heads, dim), torch.float32 if exact else torch.float16)
    if pooled.dim() != 3 or pooled.shape[2] != dim or not pooled.is_contiguous():
        raise ValueError(f"block keys are [pages, blocks, {dim}], contiguous, found {list(pooled.shape)}")
    if count > MOST_ROWS:
        raise ValueError(f"selection of {count} rows; at most {MOST_ROWS} are allowed")
    budget = out.blocks.shape[1]
    longest = scratch.scores.shape[1]
    if not 1 <= longest < MOST_BLOCKS or not 1 <= budget < 1 << 11:
        raise ValueError(f"selection of {budget} of {longest} blocks; allowed are 1 to 2047 of 1 to {MOST_BLOCKS - 1}")
    check_tensor("chosen blocks", out.blocks, (count, budget), torch.int32)
    check_tensor("chosen places", out.places, (count, budget), torch.int32)
    chunks = chunks_of(longest)
    check_tensor("selection histogram", scratch.histogram, (count, chunks, BINS), torch.int32)
    head_block = triton.next_power_of_2(heads)
    page_blocks = pooled.shape[1]
    if longest < pages.shape[1] * page_blocks:
        raise ValueError(
            f"selection scratch holds {longest} blocks, but a context may have {pages.shape[1] * page_blocks}"
        )
    common = {
        "BLOCK_TOKENS": block_tokens, "PAGE_BLOCKS": page_blocks, "BUDGET": budget, "TILE": TILE, "CHUNKS": chunks,
        "PDL": pdl, **launch_options(pdl),
    }  # fmt: skip
    score[(programs,)](
        query,
        pooled,
        pages,
        pages.stride(0),
        rows.slot,
        rows.position,
        rows.span,
        rows.span_first,
        rows.span_count,
        rows.rows_used,
        scratch.scores,
        scratch.histogram,
        longest,
        HEADS=heads,
        HEAD_BLOCK=head_block,
        DIM=dim,
        BLOCK_DIM=max(16, triton.next_power_of_2(dim)),
        GROUP=max(4 if count <= 4 else 8, 16 // head_block),
        BLOCK_ROWS=max(2, triton.next_power_of_2(count)),
        EXACT=exact,
        STAGES=1 if exact else 3,
        num_warps=4,
        **common,
    )
    pick[(chunks, count)](
        scratch.scores,
        scratch.histogram,
        scratch.tickets,
        scratch.list_bits,
        scratch.list_block,
        out.blocks,
        out.places,
        rows.slot,
        rows.position,
        rows.rows_used,
        pages,
        pages.stride(0),
        longest,
        BLOCK_BUDGET=triton.next_power_of_2(budget),
        STEP=1024,
        LIST=1024,
        num_warps=8,
        **common,
    )
