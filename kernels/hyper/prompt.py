"""Hyper-connections of a prompt chunk on the device: write the block before, read the input of the next."""

from __future__ import annotations

import torch
import triton

from kernels.hyper import _chunk
from kernels.hyper.decode import ReadPlanes
from kernels.linear.prompt import Room, multiply
from kernels.terms import check_tensor


def write_and_read_chunk(
    *,
    x: torch.Tensor,
    weights: ReadPlanes,
    room: Room,
    eps: float,
    exact: bool,
    parts: torch.Tensor | None = None,
    inject: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Adds the output of the block before to the streams, and reads the input of the next.

    `x[s] += inject[s] * sum(parts)`; `xn = rms(x[s]) norm[s]`; `lo = silu(xn down' / streams)`;
    `block = mean over streams of sigmoid(lo up') xn`; `inject_next = 2 sigmoid(xn inject' / streams)`.

    Args:
        x: float32 [rows, streams, hidden], updated in place.
        weights: of the read.
        room: for its matrices.
        eps: of the norm.
        exact: float32 operands and products.
        parts: fp16 or float32 [terms, rows, hidden] of the block before, any strides but the last; None: none.
        inject: float32 [rows, streams], weights of that block's output, from the read before it.

    Returns:
        Block input [rows, hidden], float32 if exact, else fp16; and the weights of its output, None for a read whose
        weights have no inject.

    Raises:
        ValueError: shapes do not belong together.
    """
    rows, streams, hidden = x.shape
    _check_parts(x, parts, inject)
    wide, low = streams * hidden, weights.down.rows
    if weights.norm.shape != (streams, hidden) or (weights.down.columns, weights.up.rows) != (wide, wide):
        raise ValueError(f"write_and_read_chunk: weights are not for {streams} streams of {hidden}")
    if weights.up.columns != low:
        raise ValueError(f"write_and_read_chunk: {low} rows down, {weights.up.columns} columns up")
    dtype = torch.float32 if exact else torch.float16
    following = None if weights.inject is None else torch.empty(rows, streams, device=x.device)
    normed = torch.empty(rows, wide, dtype=dtype, device=x.device)
    _write(x, parts, inject, weights=weights, normed=normed, following=following, eps=eps)
    gates = multiply(normed, weights.down, room=room, exact=exact, dtype=dtype)
    gates = torch.nn.functional.silu(gates.div_(streams), inplace=True).to(dtype)
    block = torch.empty(rows, hidden, dtype=dtype, device=x.device)
    # A gate is good to fp16, so what that leaves of a float32 matrix is not looked at.
    up, _ = room.take(weights.up, exact=exact)
    tile_rows, tile = (32, 32) if exact else (64, 128)
    _chunk.up_mix[(triton.cdiv(hidden, tile), triton.cdiv(rows, tile_rows))](
        gates, up, normed, block, rows,
        STREAMS=streams, HIDDEN=hidden, LOW=low, ROWS=tile_rows, TILE=tile, STEP=32 if exact else 64, EXACT=exact,
        num_warps=4, num_stages=1 if exact else 3,
    )  # fmt: skip
    return block, following


def write_chunk(*, x: torch.Tensor, parts: torch.Tensor, inject: torch.Tensor) -> None:
    """Only adds the output of a block to the streams; arguments as in `write_and_read_chunk`."""
    _check_parts(x, parts, inject)
    _write(x, parts, inject, weights=None, normed=None, following=None, eps=0.0)


def _write(
    x: torch.Tensor,
    parts: torch.Tensor | None,
    inject: torch.Tensor | None,
    *,
    weights: ReadPlanes | None,
    normed: torch.Tensor | None,
    following: torch.Tensor | None,
    eps: float,
) -> None:
    rows, streams, hidden = x.shape
    tile = min(256, triton.next_power_of_2(hidden))
    streams_block = triton.next_power_of_2(streams)
    count = max(1, 4096 // (tile * streams_block))
    _chunk.write_norm[(triton.cdiv(rows, count),)](
        x, x if parts is None else parts, x if inject is None else inject,
        x if weights is None else weights.norm, x if weights is None or weights.inject is None else weights.inject,
        x if normed is None else normed, x if following is None else following,
        0 if parts is None else parts.stride(0), 0 if parts is None else parts.stride(1), rows, eps,
        TERMS=0 if parts is None else parts.shape[0], STREAMS=streams, STREAMS_BLOCK=streams_block, HIDDEN=hidden,
        TILE=tile, ROWS=count, NORM=normed is not None, INJECT=following is not None,
        EXACT=normed is None or normed.dtype == torch.float32, num_warps=4,
    )  # fmt: skip


def _check_parts(x: torch.Tensor, parts: torch.Tensor | None, inject: torch.Tensor | None) -> None:
    rows, streams, hidden = x.shape
    check_tensor("streams", x, (rows, streams, hidden))
    if (parts is None) != (inject is None):
        raise ValueError("inject weights go with parts; give both or neither")
    if parts is not None and inject is not None:
        if parts.dtype not in (torch.float16, torch.float32) or parts.shape[1:] != (rows, hidden):
            raise ValueError(
                f"parts are fp16 or float32 [terms, {rows}, {hidden}], found {parts.dtype} {list(parts.shape)}"
            )
        if parts.stride(2) != 1:
            raise ValueError(f"parts have adjacent values, found strides {parts.stride()}")
        check_tensor("inject weights", inject, (rows, streams))
