"""Device side of what kernels over many rows share: products of tiles, their operands, offsets of tiles."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, RET505

import triton
import triton.language as tl

from kernels.device import HALF_MAX


@triton.jit
def product(a, b, EXACT: tl.constexpr):
    """a . b in float32; EXACT operands are float32, and three tensor-core products keep what float32 keeps of them."""
    if EXACT:
        return tl.dot(a, b, input_precision="tf32x3")
    else:
        return tl.dot(a, b)


@triton.jit
def narrow(x, EXACT: tl.constexpr):
    """Operand of a product: fp16, saturated (NaN stays NaN), or float32 as it is."""
    if EXACT:
        return x
    else:
        x = tl.where(x > HALF_MAX, HALF_MAX, x)
        return tl.where(x < -HALF_MAX, -HALF_MAX, x).to(tl.float16)


@triton.jit
def at_rows(row, width, b_column):
    """Offsets of a tile [rows, columns] in rows of `width` values."""
    return row.to(tl.int64)[:, None] * width + b_column[None, :]


@triton.jit
def summed(p_part, o_term, o_row, b_row, b_column, mask, TERMS: tl.constexpr):
    """float32 sum of terms [rows, columns], in their order."""
    o_tile = b_row.to(tl.int64)[:, None] * o_row + b_column[None, :]
    total = tl.load(p_part + o_tile, mask=mask, other=0.0).to(tl.float32)
    for i in tl.static_range(1, TERMS):
        total += tl.load(p_part + i * o_term + o_tile, mask=mask, other=0.0).to(tl.float32)
    return total


@triton.jit
def load_place(p_place):
    """(Slot, first position, rows that are somebody's) of a prompt chunk; see `kernels.chunk`."""
    return tl.load(p_place).to(tl.int64), tl.load(p_place + 1), tl.load(p_place + 2)
