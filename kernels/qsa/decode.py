"""Block selection of a decode window on the device, exact for any context, in two launches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kernels.qsa._triton import pick, score
from kernels.terms import check_tensor, launch_options
from kernels.window import MOST_ROWS, WindowRows

BINS = 256
HISTOGRAM_COPIES = 4
COLUMNS = 32
MOST_BLOCKS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectScratch:
    """Counters and scores of a selection; all layers of a window share it. It cleans up after itself.

    Attributes:
        scores: float32 [rows, blocks of the longest context].
        histogram: int32 [4, rows, 256], zero between launches.
        counts: int32 [rows, 2], zero between launches.
        list_bits, list_block: int32 [rows, blocks]: candidates of the deciding bin.
        chosen: int32 [rows, budget].
    """

    scores: torch.Tensor
    histogram: torch.Tensor
    counts: torch.Tensor
    list_bits: torch.Tensor
    list_block: torch.Tensor
    chosen: torch.Tensor

    @classmethod
    def empty(cls, *, rows: int, longest_blocks: int, budget_blocks: int, device: torch.device | str) -> SelectScratch:
        """Scratch for contexts of up to `longest_blocks` complete blocks.

        Raises:
            ValueError: more blocks than the counters can tell apart.
        """
        if not 1 <= longest_blocks < MOST_BLOCKS or not 1 <= budget_blocks < 1 << 11:
            raise ValueError(
                f"selection of {budget_blocks} of {longest_blocks} blocks; "
                f"allowed are 1 to 2047 of 1 to {MOST_BLOCKS - 1}"
            )
        lists = [torch.empty((rows, longest_blocks), dtype=torch.int32, device=device) for _ in range(2)]
        return cls(
            scores=torch.empty((rows, longest_blocks), device=device),
            histogram=torch.zeros((HISTOGRAM_COPIES, rows, BINS), dtype=torch.int32, device=device),
            counts=torch.zeros((rows, 2), dtype=torch.int32, device=device),
            list_bits=lists[0],
            list_block=lists[1],
            chosen=torch.empty((rows, budget_blocks), dtype=torch.int32, device=device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The blocks each row sees besides its tail, in rising order: `min(budget, complete blocks)` of them.

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
    pick_programs: int | None = None,
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
        pick_programs: of each row in the second launch, likewise; None: by the longest context.
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
    check_tensor("chosen blocks", out.blocks, (count, budget), torch.int32)
    check_tensor("chosen places", out.places, (count, budget), torch.int32)
    check_tensor("selection scratch", scratch.chosen, (count, budget), torch.int32)
    head_block = triton.next_power_of_2(heads)
    page_blocks = pooled.shape[1]
    if longest < pages.shape[1] * page_blocks:
        raise ValueError(
            f"selection scratch holds {longest} blocks, but a context may have {pages.shape[1] * page_blocks}"
        )
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
        count,
        HEADS=heads,
        HEAD_BLOCK=head_block,
        DIM=dim,
        BLOCK_DIM=max(16, triton.next_power_of_2(dim)),
        GROUP=max(1, COLUMNS // head_block),
        BLOCK_TOKENS=block_tokens,
        PAGE_BLOCKS=page_blocks,
        BUDGET=budget,
        BLOCK_ROWS=MOST_ROWS,
        TILE=64,
        COPIES=HISTOGRAM_COPIES,
        EXACT=exact,
        STAGES=1 if exact else 3,
        PDL=pdl,
        num_warps=4,
        **launch_options(pdl),
    )
    tile = 512
    if pick_programs is None:
        pick_programs = max(2, min(32, longest // tile))
    block_budget = triton.next_power_of_2(budget)
    pick[(pick_programs, count)](
        scratch.scores,
        scratch.histogram,
        scratch.counts,
        scratch.list_bits,
        scratch.list_block,
        scratch.chosen,
        out.blocks,
        out.places,
        rows.slot,
        rows.position,
        rows.rows_used,
        pages,
        pages.stride(0),
        longest,
        count,
        BLOCK_TOKENS=block_tokens,
        PAGE_BLOCKS=page_blocks,
        BUDGET=budget,
        BLOCK_BUDGET=block_budget,
        TILE=tile,
        LIST=1024,
        COPIES=HISTOGRAM_COPIES,
        CHUNK=min(32, block_budget),
        PDL=pdl,
        num_warps=8,
        **launch_options(pdl),
    )
