"""Multiplies many rows with planes: the matrix is unpacked once for all of them, then the library's product runs.

A matrix is read, written and read again once for a whole chunk of rows: a few per cent of the product from 512 rows on.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import triton
from torch import Tensor

from kernels.linear._prompt import unpack_kernel
from kernels.linear.op import codebook
from kernels.planes import Planes

_STRIPS = 4
_ALIGNED = 16
"""Columns of a result, or a multiple of them: where it is none, the library takes several times as long."""


class Room:
    """Memory for one unpacked matrix at a time; products on one stream share it."""

    def __init__(self, halves: int, *, device: torch.device | str) -> None:
        """Room for `halves` values of 16 bits (see `room_halves`)."""
        self._flat = torch.empty(halves, dtype=torch.float16, device=device)

    @property
    def size_bytes(self) -> int:
        """Bytes."""
        return self._flat.nbytes

    def take(self, planes: Planes, *, exact: bool, aligned: bool = False) -> tuple[Tensor, Tensor | None]:
        """The unpacked matrix [rows, columns], float32 if exact, else fp16; with it the rest of a float32 matrix.

        Args:
            planes: the matrix.
            exact: see above.
            aligned: with rows of zeros to the next 16, which the last strip has.

        Raises:
            ValueError: the matrix is larger than the room.
        """
        shape = (_aligned(planes.rows) if aligned else planes.rows, planes.columns)
        size = shape[0] * shape[1]
        if room_halves([planes], exact=exact) > self._flat.numel():
            raise ValueError(
                f"a matrix [{planes.rows}, {planes.columns}] of {planes.format} does not fit a room of "
                f"{self._flat.numel()} halves; make the room for the largest matrix"
            )
        if exact:
            whole = self._flat.view(torch.float32)[:size].view(shape)
            return _unpack(planes, whole, None), None
        rest = self._flat[size : 2 * size].view(shape) if planes.form.bits == 32 else None
        return _unpack(planes, self._flat[:size].view(shape), rest), rest


def room_halves(matrices: Iterable[Planes], *, exact: bool) -> int:
    """16-bit values that the largest of some matrices needs."""
    return max(
        (_aligned(one.rows) * one.columns * (2 if exact or one.form.bits == 32 else 1) for one in matrices),
        default=0,
    )


def multiply(
    x: Tensor, planes: Planes, *, room: Room, exact: bool, dtype: torch.dtype | None = None, apart: bool = False
) -> Tensor:
    """`x . weights^T`, [rows, N]; sums are float32.

    Args:
        x: [rows, K] in natural order: fp16, or float32 if exact; adjacent values in a row.
        planes: the matrix [N, K].
        room: for it.
        exact: float32 weights and products.
        dtype: of the result: float32 or the type of x, which is the default. float32 matrices (they decide: router,
            decay) always give float32.
        apart: rows of the result may lie further apart than N, so that any N is as fast as a multiple of 16.

    Raises:
        ValueError: a shape or type that does not fit.
    """
    wanted = torch.float32 if exact else torch.float16
    if x.dim() != 2 or x.shape[1] != planes.columns or x.dtype != wanted or x.stride(1) != 1:
        raise ValueError(
            f"multiply: x is {wanted} [rows, {planes.columns}] of adjacent values, "
            f"found {x.dtype} {list(x.shape)} with strides {x.stride()}"
        )
    weights, rest = room.take(planes, exact=exact, aligned=apart)
    if rest is not None:
        found = _product(x, weights, torch.float32).add_(_product(x, rest, torch.float32))
    else:
        found = _product(x, weights, dtype or x.dtype)
    return found[:, : planes.rows] if apart else found


def _aligned(rows: int) -> int:
    return -(-rows // _ALIGNED) * _ALIGNED


def _product(x: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
    if x.is_cuda and dtype != x.dtype:
        return torch.mm(x, weights.t(), out_dtype=dtype)
    if not x.is_cuda and x.dtype == torch.float16:
        return (x.to(torch.float32) @ weights.to(torch.float32).t()).to(dtype)
    return x @ weights.t()


def _unpack(planes: Planes, out: Tensor, rest: Tensor | None) -> Tensor:
    """Fills `out` [rows or more, columns], and `rest` with what rounding left."""
    strips = min(_STRIPS, planes.strips)
    strips = 1 << (strips.bit_length() - 1)
    unpack_kernel[(triton.cdiv(planes.strips, strips), planes.chunks)](
        planes.words.view(torch.uint32),
        out,
        out if rest is None else rest,
        codebook(out.device),
        out.shape[0],
        planes.columns,
        FMT=planes.form.packed,
        T=strips,
        NCH=planes.chunks,
        STRIPS=planes.strips,
        REST=rest is not None,
        num_warps=strips,
    )
    return out
