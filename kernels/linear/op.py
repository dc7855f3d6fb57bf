"""Multiplies operand rows with a planes matrix into partial sums; the launch depends on the matrix's shape alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from kernels.linear._triton import linear_kernel, pair_kernel
from kernels.planes import Planes
from kernels.quant.codebooks import grid

MAX_ROWS = 40
_MAX_SPLITS = 12
_WANTED_WARPS = 1500
_MOST_CHUNKS = 5
_MOST_HELD = 160
"""Words in registers of each thread."""


@dataclass(frozen=True, slots=True)
class _Shape:
    warps: int
    splits: int


@cache
def _shape(strips: int, chunks: int) -> _Shape:
    """Strips of a program and splits of the inputs: enough warps to fill a card, from the matrix's shape alone."""
    warps = 4 if strips >= 64 else 2 if strips >= 32 else 1
    divisors = [count for count in range(1, min(chunks, _MAX_SPLITS) + 1) if chunks % count == 0]
    enough = [count for count in divisors if count * strips >= _WANTED_WARPS]
    return _Shape(warps, enough[0] if enough else divisors[-1])


def holds_words(planes: Planes, *, rows: int, exact: bool) -> bool:
    """Whether programs of a product hold all their words at once: where there are too few warps to be patient.

    Every row gets the same bits either way.
    """
    shape = _shape(planes.strips, planes.chunks)
    chunks = planes.chunks // shape.splits
    few = shape.splits * planes.strips < _WANTED_WARPS and rows <= 8
    return few and not exact and 1 < chunks <= _MOST_CHUNKS and chunks * planes.form.tile_words // 32 <= _MOST_HELD


def splits(rows: int, columns: int) -> int:
    """Partial sums that `linear` writes for a matrix of these sides."""
    return _shape(-(-rows // 32), -(-columns // 128)).splits


@cache
def codebook(device: torch.device) -> Tensor:
    """The grid of iq3_s for kernels: uint16 [512], four nibbles 8 + level, the first input lowest."""
    levels = (grid("iq3_s", torch.device("cpu")).to(torch.int32) - 1) // 2 + 8
    packed = sum((levels[:, i] << (4 * i) for i in range(4)), torch.zeros(512, dtype=torch.int32))
    return torch.where(packed >= 1 << 15, packed - (1 << 16), packed).to(torch.int16).to(device).view(torch.uint16)


@cache
def all_rows(device: torch.device) -> Tensor:
    """int32 [1] that says all rows are used."""
    return torch.full((1,), MAX_ROWS, dtype=torch.int32, device=device)


def operand_words(x: Tensor) -> Tensor:
    """Operand rows as the kernels read them: float32, or uint32 pairs of fp16."""
    return x if x.dtype == torch.float32 else x.view(torch.int32).view(torch.uint32)


def check_operand(what: str, x: Tensor, *, padded_columns: int, exact: bool) -> None:
    """Raises ValueError unless x is a contiguous [rows, padded columns] of the type that `exact` asks for."""
    wanted = torch.float32 if exact else torch.float16
    if x.dtype != wanted or x.dim() != 2 or x.shape[1] != padded_columns or not x.is_contiguous():
        raise ValueError(
            f"{what}: operand rows are contiguous {wanted} [rows, {padded_columns}], found {x.dtype} {list(x.shape)}"
        )
    if not 1 <= x.shape[0] <= MAX_ROWS:
        raise ValueError(f"{what}: 1 to {MAX_ROWS} rows, found {x.shape[0]}; multiply longer windows in prompt kernels")


def linear(
    x: Tensor,
    planes: Planes,
    *,
    out: Tensor,
    exact: bool,
    pdl: bool = False,
    beside: bool = False,
    rows_used: Tensor | None = None,
) -> None:
    """Partial sums of `x . weights^T`: their sum over the first dimension, in order, is the product.

    A row's sums are the same bits whatever the other rows are and however many there are.

    Args:
        x: operand rows [RB, padded columns], 1 to 40: permuted fp16, or float32 in natural order if exact.
        planes: the matrix [N, K].
        out: float32 [splits(N, K), RB, N], contiguous; every element is written.
        exact: float32 activations and products, for comparison; else fp16 weights and activations, float32 sums.
        pdl: launch before the launch before has ended (sm_90 and newer); weights are then read ahead.
        beside: with pdl, the launch before is another product of the same `x` (itself with pdl); both run at once.
        rows_used: int32 [1] on the device; rows from there on get zeros. All rows if None.

    Raises:
        ValueError: a shape or type that does not fit.
    """
    check_operand("linear", x, padded_columns=planes.padded_columns, exact=exact)
    shape, rows, tiles = _checked("linear", x, planes, out, exact=exact)
    launch = (-(-planes.strips // shape.warps), shape.splits, -(-rows // (8 * tiles)))
    linear_kernel[launch](
        planes.words.view(torch.uint32),
        operand_words(x),
        out,
        codebook(x.device),
        all_rows(x.device) if rows_used is None else rows_used,
        rows,
        planes.rows,
        FMT=planes.form.packed,
        S=shape.warps,
        RT=tiles,
        NCH=planes.chunks,
        STRIPS=planes.strips,
        SPLITS=shape.splits,
        DEEP=not beside and holds_words(planes, rows=rows, exact=exact),
        EXACT=exact,
        BESIDE=beside,
        PDL=pdl,
        num_warps=shape.warps,
        num_stages=1,
        **({"launch_pdl": True} if pdl else {}),
    )


def linear_pair(
    x: Tensor,
    planes: Planes,
    small: Planes,
    *,
    out: Tensor,
    small_out: Tensor,
    exact: bool,
    pdl: bool = False,
    rows_used: Tensor | None = None,
) -> None:
    """`linear` of two matrices in one launch, with the same sums; the small one's programs start first.

    Args:
        x: operand rows of both.
        planes: the larger matrix.
        small: the other; any format.
        out, small_out: as of `linear`.
        exact, pdl, rows_used: as of `linear`.

    Raises:
        ValueError: a shape or type that does not fit.
    """
    check_operand("linear", x, padded_columns=planes.padded_columns, exact=exact)
    if small.columns != planes.columns:
        raise ValueError(f"linear: matrices of {planes.columns} and {small.columns} inputs have no operand in common")
    shape, rows, tiles = _checked("linear", x, planes, out, exact=exact)
    less, _, _ = _checked("linear", x, small, small_out, exact=exact)
    programs = -(-planes.strips // shape.warps) * shape.splits + -(-small.strips // shape.warps) * less.splits
    pair_kernel[(programs, -(-rows // (8 * tiles)))](
        planes.words.view(torch.uint32),
        small.words.view(torch.uint32),
        operand_words(x),
        out,
        small_out,
        codebook(x.device),
        all_rows(x.device) if rows_used is None else rows_used,
        rows,
        planes.rows,
        small.rows,
        FMT=planes.form.packed,
        SMALL=small.form.packed,
        S=shape.warps,
        RT=tiles,
        NCH=planes.chunks,
        STRIPS=planes.strips,
        SPLITS=shape.splits,
        SMALL_STRIPS=small.strips,
        SMALL_SPLITS=less.splits,
        EXACT=exact,
        PDL=pdl,
        num_warps=shape.warps,
        num_stages=1,
        **({"launch_pdl": True} if pdl else {}),
    )


def _checked(what: str, x: Tensor, planes: Planes, out: Tensor, *, exact: bool) -> tuple[_Shape, int, int]:
    """How the matrix is shared, the operand's rows, and tiles of eight of them a program."""
    shape, rows = _shape(planes.strips, planes.chunks), x.shape[0]
    if out.shape != (shape.splits, rows, planes.rows) or out.dtype != torch.float32 or not out.is_contiguous():
        raise ValueError(
            f"{what}: out is contiguous float32 {[shape.splits, rows, planes.rows]}, "
            f"found {out.dtype} {list(out.shape)}"
        )
    # Wide tiles of exact products would take the compiler minutes.
    return shape, rows, 1 if exact or rows <= 8 else 2 if rows <= 16 else 4
