"""The n-gram embedding of a prompt chunk on the device: hash, gather, gate, convolve, add to the streams."""

from __future__ import annotations

import torch
import triton

from kernels.chunk import Chunk
from kernels.embedding.op import Table
from kernels.hyper.prompt import write_chunk
from kernels.linear.prompt import Room, multiply
from kernels.ngram import _chunk
from kernels.ngram.decode import NgramHash, NgramState, NgramWeights
from kernels.terms import check_tensor
from kernels.window import RING_POSITIONS

PIECE_ROWS = 2048
"""Rows at once: bounds what lies between the launches, three wide rows for each."""


def add_ngrams_chunk(
    *,
    x: torch.Tensor,
    chunk: Chunk,
    table: Table,
    hashing: NgramHash,
    weights: NgramWeights,
    order: int,
    state: NgramState,
    room: Room,
    eps: float,
    exact: bool,
    parts: torch.Tensor | None = None,
    inject: torch.Tensor | None = None,
    staged: bool = False,
) -> None:
    """Adds the block before and the embedding of the last tokens to the streams; formulas as in `kernels.ngram.decode`.

    Args:
        x: float32 [rows, streams, hidden], updated in place.
        chunk: where the rows belong.
        table: in device memory, or pinned on the host and read over the link. If staged: [rows * heads, row bytes], the
            picked rows of this chunk, which the host has gathered.
        hashing: constants.
        weights: of the layer.
        order: of the n-grams, rows between two taps.
        state: rings of tokens and of normed values; updated.
        room: for the layer's matrices.
        eps: of the norms.
        exact: float32 operands and products.
        parts: of the block before, as in `kernels.hyper.prompt`.
        inject: weights of its output.
        staged: see table.

    Raises:
        ValueError: shapes do not belong together, or a type that has no kernel.
    """
    _check(x, chunk, table, hashing, weights, order, state)
    if parts is not None and inject is not None:
        write_chunk(x=x, parts=parts, inject=inject)
    elif parts is not None or inject is not None:
        raise ValueError("inject weights go with parts; give both or neither")
    for first in range(0, chunk.rows, PIECE_ROWS):
        piece = chunk.piece(first, PIECE_ROWS)
        mine = table
        if staged:
            mine = Table(table.raw[first * hashing.head_rows.shape[0] :], table.type_name, table.columns)
        found = _gather(piece, mine, hashing, state, staged=staged, exact=exact)
        _add(x[first : first + piece.rows], found, piece, weights, order, state, room=room, eps=eps, exact=exact)


def _gather(
    chunk: Chunk, table: Table, hashing: NgramHash, state: NgramState, *, staged: bool, exact: bool
) -> torch.Tensor:
    """The picked table rows [rows, heads * width], float32 if exact, else fp16."""
    order, heads, width = hashing.multipliers.shape[0], hashing.head_rows.shape[0], table.columns
    dtype = torch.float32 if exact else torch.float16
    out = torch.empty(chunk.rows, heads * width, dtype=dtype, device=chunk.tokens.device)
    _chunk.gather[(chunk.rows, heads)](
        table.raw, chunk.tokens, state.tokens, hashing.multipliers, hashing.head_rows, hashing.head_offsets, out,
        hashing.reset, chunk.place,
        ORDER=order, HEADS=heads, WIDTH=width, BLOCK=triton.next_power_of_2(width), RING=RING_POSITIONS,
        STAGED=staged, EXACT=exact, num_warps=1, **table.kind,
    )  # fmt: skip
    return out


def _add(
    x: torch.Tensor,
    found: torch.Tensor,
    chunk: Chunk,
    weights: NgramWeights,
    order: int,
    state: NgramState,
    *,
    room: Room,
    eps: float,
    exact: bool,
) -> None:
    rows, streams, hidden = x.shape
    wide, taps = streams * hidden, weights.conv.shape[0]
    key = multiply(found, weights.key, room=room, exact=exact)
    value = multiply(found, weights.value, room=room, exact=exact)
    gated, normed = (torch.empty(rows, wide, dtype=found.dtype, device=x.device) for _ in range(2))
    _chunk.gate[(streams, rows)](
        x, key, value, weights.norm_key, weights.norm_query, weights.norm_conv, gated, normed, eps,
        STREAMS=streams, HIDDEN=hidden, BLOCK=triton.next_power_of_2(hidden), EXACT=exact,
        num_warps=8 if hidden >= 1024 else 4,
    )  # fmt: skip
    _chunk.convolve[(triton.cdiv(rows, 8), triton.cdiv(wide, 512))](
        x, gated, normed, weights.conv, state.conv, chunk.place,
        WIDE=wide, BLOCK=512, TAPS=taps, DILATION=order, RING=RING_POSITIONS, ROWS=8, num_warps=4,
    )  # fmt: skip
    _chunk.note[(RING_POSITIONS, triton.cdiv(wide, 1024))](
        normed, chunk.tokens, state.conv, state.tokens, chunk.place,
        WIDE=wide, BLOCK=1024, RING=RING_POSITIONS, num_warps=4,
    )  # fmt: skip


def _check(
    x: torch.Tensor,
    chunk: Chunk,
    table: Table,
    hashing: NgramHash,
    weights: NgramWeights,
    order: int,
    state: NgramState,
) -> None:
    rows, streams, hidden = x.shape
    wide, (taps, channels) = streams * hidden, weights.conv.shape
    heads, grams = hashing.head_rows.shape[0], hashing.multipliers.shape[0]
    table.check("add_ngrams_chunk")
    check_tensor("add_ngrams_chunk: x", x, (chunk.rows, streams, hidden))
    check_tensor("add_ngrams_chunk: tokens", chunk.tokens, (rows,), torch.int32)
    width = heads * table.columns
    sides = (weights.key.rows, weights.key.columns, weights.value.rows, weights.value.columns)
    if sides != (wide, width, hidden, width) or channels != wide:
        raise ValueError(f"add_ngrams_chunk: products {sides} are not for {streams} streams of {hidden} and {width}")
    if grams < 2 or heads % (grams - 1) or (taps - 1) * order >= RING_POSITIONS or grams > RING_POSITIONS:
        raise ValueError(
            f"add_ngrams_chunk: {heads} heads of orders 2 to {grams}, {taps} taps {order} rows apart; heads divide "
            f"among the orders, and the ring holds {RING_POSITIONS} rows"
        )
    for name in ("multipliers", "head_rows", "head_offsets"):
        count = grams if name == "multipliers" else heads
        check_tensor(f"add_ngrams_chunk: {name}", getattr(hashing, name), (count,), torch.int64)
    for name in ("norm_key", "norm_query", "norm_conv"):
        check_tensor(f"add_ngrams_chunk: {name}", getattr(weights, name), (streams, hidden))
    check_tensor("add_ngrams_chunk: conv ring", state.conv, (state.conv.shape[0], RING_POSITIONS, wide))
    check_tensor("add_ngrams_chunk: token ring", state.tokens, (state.conv.shape[0], RING_POSITIONS), torch.int32)
