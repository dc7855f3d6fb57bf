"""Gated DeltaNet of a prompt chunk on the device: blocks of rows at a time, on the state that decoding uses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kernels.chunk import Chunk
from kernels.gdn import _chunk
from kernels.gdn.decode import DeltaState, DeltaWeights
from kernels.terms import check_rows, check_tensor
from kernels.window import RING_POSITIONS

BLOCK_ROWS = 64
"""Rows whose updates are solved for together."""

SLICE_ROWS = 2048
"""Rows of one pass through the launches: this sets their memory, and hardly the time."""

_COLUMNS = 64


@dataclass(frozen=True, slots=True)
class _Buffers:
    """What the launches of a slice hand on: R rows, a multiple of 64; fp16, or float32 for exact products.

    Attributes:
        query: [R, key_heads, dim]. key: the same.
        value: [R, heads, dim]. read: the same. update: the same.
        decay: float64 [R, heads]. strength: float32 [R, heads].
        states: [R / 64, heads, dim (key), dim (value)], before each block of rows.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    read: torch.Tensor
    update: torch.Tensor
    decay: torch.Tensor
    strength: torch.Tensor
    states: torch.Tensor

    @classmethod
    def empty(cls, blocks: int, *, key_heads: int, heads: int, dim: int, like: torch.Tensor) -> _Buffers:
        rows = blocks * BLOCK_ROWS

        def halves(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=like.dtype, device=like.device)

        return cls(
            halves(rows, key_heads, dim),
            halves(rows, key_heads, dim),
            halves(rows, heads, dim),
            halves(rows, heads, dim),
            halves(rows, heads, dim),
            torch.empty(rows, heads, dtype=torch.float64, device=like.device),
            torch.empty(rows, heads, device=like.device),
            halves(blocks, heads, dim, dim),
        )


def run_delta_chunk(
    *,
    qkv: torch.Tensor,
    gate: torch.Tensor,
    alpha: torch.Tensor,
    beta: torch.Tensor,
    chunk: Chunk,
    weights: DeltaWeights,
    state: DeltaState,
    eps: float,
    exact: bool,
) -> torch.Tensor:
    """Runs the mixer between its two products and updates the slot's state in place; see `decode.run_delta`.

    Afterwards the state includes every row of the chunk, and the journal of draft rows is empty.

    Args:
        qkv: fp16 or float32 [rows, (2 * key_heads + heads) * dim]: queries, keys, values; any distance of rows.
        gate: [rows, heads * dim], likewise.
        alpha: [rows, heads], likewise.
        beta: [rows, heads], likewise.
        chunk: where the rows belong.
        weights: of the layer.
        state: of the layer.
        eps: of the gated norm.
        exact: float32 products.

    Returns:
        [rows, heads * dim], float32 if exact, else fp16.

    Raises:
        ValueError: shapes do not belong together.
    """
    _check(qkv, gate, alpha, beta, chunk=chunk, weights=weights, state=state)
    dtype = torch.float32 if exact else torch.float16
    _, heads, dim, _ = state.delta.shape
    channels, rows = weights.conv.shape[1], chunk.rows
    out = torch.empty(rows, heads * dim, dtype=dtype, device=qkv.device)
    blocks = triton.cdiv(min(rows, SLICE_ROWS), BLOCK_ROWS)
    buffers = _Buffers.empty(blocks, key_heads=state.key.shape[2], heads=heads, dim=dim, like=out)
    for first in range(0, rows, SLICE_ROWS):
        _run_slice(
            qkv, gate, alpha, beta, chunk=chunk, weights=weights, state=state, buffers=buffers, first=first, out=out,
            eps=eps, exact=exact,
        )  # fmt: skip
    _chunk.note_tail[(RING_POSITIONS, triton.cdiv(channels, 1024))](
        qkv, state.conv, state.at, qkv.stride(0), chunk.place,
        CHANNELS=channels, HEADS=heads, BLOCK=1024, RING=RING_POSITIONS, num_warps=4,
    )  # fmt: skip
    return out


def _run_slice(
    qkv: torch.Tensor,
    gate: torch.Tensor,
    alpha: torch.Tensor,
    beta: torch.Tensor,
    *,
    chunk: Chunk,
    weights: DeltaWeights,
    state: DeltaState,
    buffers: _Buffers,
    first: int,
    out: torch.Tensor,
    eps: float,
    exact: bool,
) -> None:
    """Rows `first` to `first + SLICE_ROWS` of the chunk, or to its end."""
    _, heads, dim = buffers.value.shape
    key_heads = buffers.key.shape[1]
    # Of fp16 tiles 16 wide the compiler's products (Triton 3.6, sm_90) read past their shared memory.
    block = max(16 if exact else 32, triton.next_power_of_2(dim))
    columns = min(_COLUMNS, block)
    blocks = triton.cdiv(min(SLICE_ROWS, chunk.rows - first), BLOCK_ROWS)
    shape = {
        "KEY_HEADS": key_heads, "HEADS": heads, "DIM": dim, "BLOCK": block, "CHUNK": BLOCK_ROWS, "EXACT": exact,
    }  # fmt: skip
    made = (buffers.key, buffers.value, buffers.decay, buffers.strength)
    _chunk.prepare[(blocks, 2 * key_heads + heads)](
        qkv, alpha, beta, weights.conv, weights.rate, weights.bias, state.conv, buffers.query, *made,
        qkv.stride(0), alpha.stride(0), beta.stride(0), chunk.place, first, dim**-0.5,
        TAPS=weights.conv.shape[0], RING=RING_POSITIONS, num_warps=8, **shape,
    )  # fmt: skip
    _chunk.solve[(blocks, heads)](*made, buffers.read, buffers.update, num_warps=4, **shape)
    _chunk.recur[(heads, triton.cdiv(dim, columns))](
        state.delta, state.at, state.key, state.value, state.decay, state.strength,
        buffers.key, buffers.read, buffers.update, buffers.decay, buffers.states,
        chunk.place, first, blocks,
        COLUMNS=columns, RING=RING_POSITIONS, STAGES=1 if exact else 3, num_warps=4, **shape,
    )  # fmt: skip
    _chunk.finish[(blocks, heads)](
        buffers.query, buffers.key, buffers.update, buffers.decay, buffers.states, gate, weights.norm, out,
        gate.stride(0), chunk.place, first, eps, num_warps=4, **shape,
    )  # fmt: skip


def _check(
    qkv: torch.Tensor,
    gate: torch.Tensor,
    alpha: torch.Tensor,
    beta: torch.Tensor,
    *,
    chunk: Chunk,
    weights: DeltaWeights,
    state: DeltaState,
) -> None:
    slots, heads, dim, _ = state.delta.shape
    key_heads, (taps, channels) = state.key.shape[2], weights.conv.shape
    if heads % key_heads or channels != (2 * key_heads + heads) * dim or taps > RING_POSITIONS:
        raise ValueError(
            f"run_delta_chunk: a convolution of {taps} taps over {channels} channels is not for {key_heads} key heads "
            f"and {heads} value heads of {dim}"
        )
    for name, tensor, width in (
        ("qkv", qkv, channels), ("gate", gate, heads * dim), ("alpha", alpha, heads), ("beta", beta, heads)
    ):  # fmt: skip
        check_rows(f"run_delta_chunk: {name}", tensor, rows=chunk.rows, width=width)
    check_tensor("run_delta_chunk: conv weight", weights.conv, (taps, channels))
    check_tensor("run_delta_chunk: delta", state.delta, (slots, heads, dim, dim))
    check_tensor("run_delta_chunk: conv ring", state.conv, (slots, RING_POSITIONS, channels))
    check_tensor("run_delta_chunk: key journal", state.key, (slots, RING_POSITIONS, key_heads, dim))
    check_tensor("run_delta_chunk: value journal", state.value, (slots, RING_POSITIONS, heads, dim))
