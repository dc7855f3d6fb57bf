"""Hyper-connections of a decode window on the device: write the block before, read the input of the next."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kernels.hyper import _triton
from kernels.linear import linear, splits
from kernels.linear.op import codebook, operand_words
from kernels.planes import Planes, operand_columns
from kernels.terms import check_operand, check_tensor, check_terms, launch_options, operand_rows

_WARPS = 8
_MAX_SPLITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlanes:
    """Weights of one read.

    Attributes:
        norm: float32 [streams, hidden].
        down: planes [low, streams * hidden].
        up: planes [streams * hidden, low].
        inject: float32 [streams, streams * hidden]; None where nothing is written after the block (a final mixer).
    """

    norm: torch.Tensor
    down: Planes
    up: Planes
    inject: torch.Tensor | None

    @property
    def fused(self) -> bool:
        """Whether the shape suits the three launches; others take five."""
        streams, hidden = self.norm.shape
        return streams in (2, 4, 8) and hidden % 32 == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperBuffers:
    """What the launches of a read hand on; may be shared by all reads of a bucket whose shapes are equal.

    Attributes:
        normed: operand rows of streams * hidden inputs.
        low: operand rows of the gates' rank.
        down: float32 partial results of the product down.
        up: float32 partial results of the product up; empty where it is fused.
        ticket: int32, zero between launches.
    """

    normed: torch.Tensor
    low: torch.Tensor
    down: torch.Tensor
    up: torch.Tensor
    ticket: torch.Tensor


def new_buffers(rows: int, *, weights: ReadPlanes, exact: bool) -> HyperBuffers:
    """Buffers of a bucket of `rows` rows for reads with weights of these shapes."""
    device, (streams, hidden) = weights.norm.device, weights.norm.shape
    wide, low = streams * hidden, weights.down.rows
    down_splits, up = splits(low, wide), torch.empty(0, device=device)
    width = low
    if weights.fused:
        _, _, down_splits = _down_shape(weights.down.chunks)
        width = weights.down.strips * 32
    else:
        up = torch.empty(splits(wide, low), rows, wide, device=device)
    return HyperBuffers(
        normed=operand_rows(rows, wide, exact=exact, device=device),
        low=operand_rows(rows, low, exact=exact, device=device),
        down=torch.empty(down_splits, rows, width, device=device),
        up=up,
        ticket=torch.zeros(_groups(rows, exact=exact)[1], weights.down.strips, dtype=torch.int32, device=device),
    )


def write_and_read(
    *,
    x: torch.Tensor,
    weights: ReadPlanes,
    buffers: HyperBuffers,
    block: torch.Tensor,
    operand: torch.Tensor,
    eps: float,
    exact: bool,
    pdl: bool,
    parts: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    sums: torch.Tensor | None = None,
) -> None:
    """Adds the output of the block before to the streams, and reads the input of the next.

    `x[s] += 2 sigmoid(sum_f gate[f, s] / streams) * sum(parts)`; `xn = rms(x[s]) norm[s]`;
    `lo = silu(xn down' / streams)`; `block = mean over streams of sigmoid(lo up') xn`;
    `sums[f, s] = xn[f] . inject[s, f]`.

    Args:
        x: float32 [rows, streams, hidden], updated in place. Without parts, the launch before may have written it; with
            parts, it must be older than that.
        weights: of the read.
        buffers: of the bucket.
        block: receives float32 [rows, hidden].
        operand: receives operand rows of `hidden` inputs.
        eps: of the norm.
        exact: float32 operands and products.
        pdl: launches may start early; needs sm_90.
        parts: partial results [terms, rows, hidden] of the block before; a view of experts' [rows, used, hidden] with
            its first two dimensions exchanged is welcome. None: nothing to write.
        gate: float32 [rows, streams, streams], `sums` of the read before that block; another tensor than `sums`.
        sums: receives float32 [rows, streams (from), streams (to)]; None if the weights have no inject.

    Raises:
        ValueError: shapes do not belong together.
    """
    rows, streams, hidden = x.shape
    wide, low = streams * hidden, weights.down.rows
    _check(x, weights, block=block, parts=parts, gate=gate, sums=sums)
    check_operand("write_and_read: operand", operand, rows=rows, inputs=hidden, exact=exact)
    check_operand("write_and_read: normed", buffers.normed, rows=rows, inputs=wide, exact=exact)
    check_operand("write_and_read: low", buffers.low, rows=rows, inputs=low, exact=exact)
    padded, early = operand_columns(wide), launch_options(pdl)
    _triton.write_norm[(streams, rows)](
        x, x if parts is None else parts, x if gate is None else gate, weights.norm,
        x if weights.inject is None else weights.inject, buffers.normed, x if sums is None else sums,
        0 if parts is None else parts.stride(0), 0 if parts is None else parts.stride(1), eps,
        TERMS=0 if parts is None else parts.shape[0], STREAMS=streams,
        STREAMS_BLOCK=triton.next_power_of_2(streams), HIDDEN=hidden,
        BLOCK=triton.next_power_of_2(hidden + padded - wide), PADDED=padded,
        INJECT=sums is not None, EXACT=exact, PDL=pdl, num_warps=8 if hidden >= 1024 else 4, **early,
    )  # fmt: skip
    if weights.fused:
        _read_fused(weights, buffers, block, operand, exact=exact, pdl=pdl)
    else:
        _read(weights, buffers, block, operand, exact=exact, pdl=pdl)


def _down_shape(chunks: int) -> tuple[int, int, int]:
    """Warps of a program, chunks of a warp, splits; from the matrix's shape alone."""
    warps = _WARPS
    while chunks % warps:
        warps //= 2
    shares = chunks // warps
    count = next(c for c in range(1, shares + 1) if shares % c == 0 and shares // c <= _MAX_SPLITS)
    return warps, count, shares // count


def _groups(rows: int, *, exact: bool) -> tuple[int, int]:
    """Tiles of 8 rows in a program, and programs that share the rows; wide exact ones compile for minutes."""
    tiles = 1 if exact or rows <= 8 else 2 if rows <= 16 else 4
    return tiles, -(-rows // (8 * tiles))


def _read_fused(
    weights: ReadPlanes,
    buffers: HyperBuffers,
    block: torch.Tensor,
    operand: torch.Tensor,
    *,
    exact: bool,
    pdl: bool,
) -> None:
    streams, hidden = weights.norm.shape
    rows, low, device = block.shape[0], weights.down.rows, block.device
    tiles, groups = _groups(rows, exact=exact)
    warps, count, parts = _down_shape(weights.down.chunks)
    common = {"RT": tiles, "STREAMS": streams, "EXACT": exact, "PDL": pdl, "num_stages": 1, **launch_options(pdl)}
    _triton.down[(weights.down.strips, parts, groups)](
        weights.down.words.view(torch.uint32), operand_words(buffers.normed), buffers.down, buffers.ticket,
        buffers.low, codebook(device), rows,
        FMT=weights.down.form.packed, WARPS=warps, COUNT=count, NCH=weights.down.chunks, STRIPS=weights.down.strips,
        SPLITS=parts, LOW=low, PADDED=operand_columns(low), num_warps=warps, **common,
    )  # fmt: skip
    _triton.up[(hidden // 32, groups)](
        weights.up.words.view(torch.uint32), operand_words(buffers.low), buffers.normed, block, operand,
        codebook(device), rows,
        FMT=weights.up.form.packed, NCH=weights.up.chunks, HIDDEN=hidden,
        PADDED_WIDE=operand_columns(streams * hidden), PADDED=operand_columns(hidden), num_warps=streams, **common,
    )  # fmt: skip


def _read(
    weights: ReadPlanes,
    buffers: HyperBuffers,
    block: torch.Tensor,
    operand: torch.Tensor,
    *,
    exact: bool,
    pdl: bool,
) -> None:
    streams, hidden = weights.norm.shape
    rows, low, wide = block.shape[0], weights.down.rows, streams * hidden
    early = launch_options(pdl)
    linear(buffers.normed, weights.down, out=buffers.down, exact=exact, pdl=pdl)
    columns = operand_columns(low)
    _triton.low_gate[(rows, columns // 128)](
        buffers.down, buffers.low, buffers.down.stride(0), buffers.down.stride(1),
        TERMS=buffers.down.shape[0], STREAMS=streams, LOW=low, PADDED=columns, EXACT=exact, PDL=pdl,
        num_warps=1, **early,
    )  # fmt: skip
    linear(buffers.low, weights.up, out=buffers.up, exact=exact, pdl=pdl)
    columns = operand_columns(hidden)
    _triton.mix[(rows, columns // 128)](
        buffers.up, buffers.normed, block, operand, buffers.up.stride(0), buffers.up.stride(1),
        TERMS=buffers.up.shape[0], STREAMS=streams, HIDDEN=hidden, BLOCK=128,
        PADDED_WIDE=operand_columns(wide), PADDED=columns, EXACT=exact, PDL=pdl, num_warps=1, **early,
    )  # fmt: skip


def _check(
    x: torch.Tensor,
    weights: ReadPlanes,
    *,
    block: torch.Tensor,
    parts: torch.Tensor | None,
    gate: torch.Tensor | None,
    sums: torch.Tensor | None,
) -> None:
    rows, streams, hidden = x.shape
    wide, low = streams * hidden, weights.down.rows
    sides = (weights.down.columns, weights.up.rows, weights.up.columns)
    if weights.norm.shape != (streams, hidden) or sides != (wide, wide, low):
        raise ValueError(
            f"write_and_read: weights are not for {streams} streams of {hidden}: norm {list(weights.norm.shape)}, "
            f"down [{low}, {sides[0]}], up [{sides[1]}, {sides[2]}]"
        )
    if (sums is None) != (weights.inject is None) or (parts is None) != (gate is None):
        raise ValueError("write_and_read: sums go with inject weights, and a gate with parts; give both or neither")
    if sums is not None and gate is not None and sums.data_ptr() == gate.data_ptr():
        raise ValueError("write_and_read: sums and gate are the same memory; alternate between two tensors")
    check_tensor("write_and_read: x", x, (rows, streams, hidden))
    check_tensor("write_and_read: block", block, (rows, hidden))
    if parts is not None and gate is not None:
        check_terms("write_and_read: parts", parts, rows=rows, width=hidden)
        check_tensor("write_and_read: gate", gate, (rows, streams, streams))
    if sums is not None and weights.inject is not None:
        check_tensor("write_and_read: sums", sums, (rows, streams, streams))
        check_tensor("write_and_read: inject", weights.inject, (streams, wide))
