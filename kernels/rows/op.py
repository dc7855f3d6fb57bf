"""Fills, judges and continues windows without the host: small launches over tables of rows."""

from __future__ import annotations

import torch

from kernels.rows import _triton
from kernels.rows.plan import plan_size
from kernels.rows.tables import Chain, DrawRows, SlotState, Verdict
from kernels.terms import check_tensor, launch_options
from kernels.window import MOST_ROWS, RING_POSITIONS, WindowRows


def fill(
    plan: torch.Tensor,
    state: SlotState,
    *,
    out: WindowRows,
    draw: DrawRows,
    axis_position: torch.Tensor,
    forced: torch.Tensor,
    pdl: bool = False,
) -> None:
    """Makes a window's rows from the host's plan and from what the device knows of each slot.

    Args:
        plan: int32 from `pack_plan`, on the device.
        state: lengths, next tokens and drafts of all slots; its ring gets the rows' rotary positions.
        out: the window.
        draw: from `DrawRows.of_window(out)`.
        axis_position: int32 [3, rows], gets the rotary positions.
        forced: int32 [rows], gets each span's known next token, -1 where it is drawn.
        pdl: start before the launch before this one is done.

    Raises:
        ValueError: a tensor of another shape or dtype.
    """
    rows = out.rows
    if rows > MOST_ROWS:
        raise ValueError(f"a bucket of {rows} rows; at most {MOST_ROWS} are allowed")
    check_tensor("plan", plan, (plan_size(rows),), torch.int32)
    check_tensor("axis_position", axis_position, (3, rows), torch.int32)
    check_tensor("forced", forced, (rows,), torch.int32)
    _triton.fill[(1,)](
        plan,
        state.length,
        state.next_token,
        state.drafts,
        state.draft_count,
        state.axis_offset,
        state.axis_ring,
        out.tokens,
        out.slot,
        out.position,
        out.span,
        out.rows_used,
        out.span_slot,
        out.span_first,
        out.span_count,
        out.span_start,
        out.span_certain,
        out.spans_used,
        axis_position,
        draw.position,
        draw.wanted,
        draw.recent_first,
        draw.recent_count,
        forced,
        state.length.shape[0] - 1,
        rows,
        BLOCK=MOST_ROWS,
        DRAFTS=state.drafts.shape[1],
        RING=RING_POSITIONS,
        PDL=pdl,
        num_warps=4,
        **launch_options(pdl),
    )


def accept(
    ids: torch.Tensor,
    rows: WindowRows,
    *,
    forced: torch.Tensor,
    state: SlotState,
    out: Verdict,
    chain: Chain,
    generated: torch.Tensor | None = None,
    pdl: bool = False,
) -> None:
    """Keeps drafts up to the first that differs from the token drawn before it, commits, and begins the draft chain.

    Kept rows are `certain + leading right drafts`; the next token is the one drawn at the last of them.

    Args:
        ids: int32 [rows], what was drawn at each row.
        rows: the window.
        forced: from `fill`.
        state: gets lengths and next tokens; drafts are gone.
        out: gets the verdict.
        chain: gets its first rows: those that already ran, the last kept ones; `draft_step` moves them on.
        generated: int32 [slots + 1, vocabulary], gets the kept tokens counted.
        pdl: start before the launch before this one is done.

    Raises:
        ValueError: a tensor of another shape or dtype.
    """
    count = rows.rows
    check_tensor("drawn ids", ids, (count,), torch.int32)
    check_tensor("forced", forced, (count,), torch.int32)
    check_tensor("kept", out.kept, (count,), torch.int32)
    line, draw = chain.rows, chain.draw
    _triton.accept[(count,)](
        ids,
        rows.tokens,
        rows.span_slot,
        rows.span_first,
        rows.span_count,
        rows.span_start,
        rows.span_certain,
        rows.spans_used,
        forced,
        state.length,
        state.next_token,
        state.draft_count,
        state.draft_limit,
        state.capacity,
        state.axis_offset,
        ids if generated is None else generated,
        out.kept,
        out.next_token,
        out.last_row,
        out.following,
        line.slot,
        line.position,
        line.span_start,
        line.span_count,
        line.span_certain,
        line.span_slot,
        line.rows_used,
        line.spans_used,
        chain.axis_position,
        line.tokens,
        draw.position,
        draw.wanted,
        draw.recent_first,
        draw.recent_count,
        chain.active,
        state.length.shape[0] - 1,
        0 if generated is None else generated.shape[1],
        line.rows,
        COUNTED=generated is not None,
        BLOCK=MOST_ROWS,
        DRAFTS=state.drafts.shape[1],
        PDL=pdl,
        num_warps=1,
        **launch_options(pdl),
    )


def draft_step(
    ids: torch.Tensor,
    probabilities: torch.Tensor,
    chain: Chain,
    *,
    step: int,
    state: SlotState,
    furthest: int,
    pdl: bool = False,
) -> None:
    """Takes the chain's drawn tokens as draft number `step`, where likely enough, and moves its rows one position on.

    A proposal ends at the slot's limit, at the end of its pages, or at a token less likely than the slot asks; that
    token is not offered. Rows of ended proposals go on without being drawn for: what they compute is never read.

    Args:
        ids: int32 [chain rows].
        probabilities: float32 [chain rows], the drafter's.
        chain: as `accept` or the step before left it.
        step: 0 for the first draft.
        state: gets drafts, probabilities and counts.
        furthest: positions that page tables have room for.
        pdl: start before the launch before this one is done.

    Raises:
        ValueError: a tensor of another shape or dtype, or a step beyond the drafts that the state holds.
    """
    line = chain.rows
    check_tensor("drawn ids", ids, (line.rows,), torch.int32)
    check_tensor("probabilities", probabilities, (line.rows,))
    if not 0 <= step < state.drafts.shape[1]:
        raise ValueError(f"draft number {step}; the state holds {state.drafts.shape[1]}")
    _triton.draft_step[(line.rows,)](
        ids,
        probabilities,
        line.slot,
        line.position,
        line.span_start,
        line.tokens,
        line.spans_used,
        chain.axis_position,
        chain.draw.position,
        chain.draw.wanted,
        chain.draw.recent_count,
        chain.active,
        state.length,
        state.drafts,
        state.draft_count,
        state.draft_probability,
        state.draft_limit,
        state.draft_least,
        state.capacity,
        step,
        furthest,
        line.rows,
        DRAFTS=state.drafts.shape[1],
        PDL=pdl,
        num_warps=1,
        **launch_options(pdl),
    )
