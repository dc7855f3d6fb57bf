"""The entry of a draft layer over the rows of a prompt chunk; see `kernels.embedding.entry`."""

from __future__ import annotations

import torch
import triton

from kernels.embedding._chunk import entry_norm
from kernels.embedding.entry import EntryWeights
from kernels.embedding.op import Table, by_kernel
from kernels.linear.prompt import Room, multiply
from kernels.terms import check_tensor

PIECE_ROWS = 2048
"""Rows at once: bounds what lies between the launches."""


def enter_draft_chunk(
    *,
    table: Table,
    tokens: torch.Tensor,
    wide: torch.Tensor,
    weights: EntryWeights,
    room: Room,
    x: torch.Tensor,
    eps: float,
    exact: bool,
) -> None:
    """`x[s] = from_token (rms(embed(token)) token_norm) + from_state (rms(wide)[s] state_norm[s])`.

    Args:
        table: of the embedding.
        tokens: int32 [rows], each with the streams of the token before it.
        wide: float32 [rows, streams, hidden]: streams after the last layer.
        weights: of the entry.
        room: for its matrices.
        x: receives float32 [rows, streams, hidden]; may be `wide`.
        eps: of the norms.
        exact: float32 operands and products.

    Raises:
        ValueError: shapes do not belong together.
    """
    rows, streams, hidden = x.shape
    table.check("enter_draft_chunk")
    sides = {(p.rows, p.columns) for p in (weights.from_token, weights.from_state)}
    if table.columns != hidden or sides != {(hidden, hidden)}:
        raise ValueError(f"enter_draft_chunk: rows of {table.columns}, products {sorted(sides)} are not for {hidden}")
    check_tensor("enter_draft_chunk: tokens", tokens, (rows,), torch.int32)
    check_tensor("enter_draft_chunk: wide", wide, (rows, streams, hidden))
    check_tensor("enter_draft_chunk: x", x, (rows, streams, hidden))
    check_tensor("enter_draft_chunk: token norm", weights.token_norm, (hidden,))
    check_tensor("enter_draft_chunk: state norm", weights.state_norm, (streams, hidden))
    dtype = torch.float32 if exact else torch.float16
    for first in range(0, rows, PIECE_ROWS):
        piece = slice(first, min(first + PIECE_ROWS, rows))
        count = piece.stop - first
        usable, numbers = by_kernel(table, tokens[piece])
        token = torch.empty(count, hidden, dtype=dtype, device=x.device)
        state = torch.empty(count * streams, hidden, dtype=dtype, device=x.device)
        entry_norm[(count,)](
            usable.raw, numbers, wide[piece], weights.token_norm, weights.state_norm, token, state, eps,
            STREAMS=streams, STREAMS_BLOCK=triton.next_power_of_2(streams), HIDDEN=hidden,
            BLOCK=triton.next_power_of_2(hidden), GROUPED=weights.grouped, EXACT=exact,
            num_warps=8 if hidden >= 1024 else 4, **usable.kind,
        )  # fmt: skip
        common = {"room": room, "exact": exact, "dtype": torch.float32}
        from_token = multiply(token, weights.from_token, **common)  # type: ignore[arg-type]
        from_state = multiply(state, weights.from_state, **common)  # type: ignore[arg-type]
        torch.add(from_state.view(count, streams, hidden), from_token.unsqueeze(1), out=x[piece])
