"""Device side of tiles: products, written twice because the interpreter's own rounds by tile shape; masks."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels.device import INTERPRET

INTERPRETED = tl.constexpr(INTERPRET)

if INTERPRET:

    @triton.jit
    def tile_dot(a, b, EXACT: tl.constexpr):
        """a . b over [m, k] x [k, n] in float32; each result is one sum over k in the same order, wherever it lies."""
        return tl.sum(a.to(tl.float32)[:, :, None] * b.to(tl.float32)[None, :, :], axis=1)

else:

    @triton.jit
    def tile_dot(a, b, EXACT: tl.constexpr):
        """a . b over [m, k] x [k, n] in float32; EXACT operands are float32 and are multiplied as such."""
        if EXACT:
            return tl.dot(a, b, input_precision="ieee")
        return tl.dot(a, b)


@triton.jit
def when(condition, mask):
    """`mask` where a scalar condition holds, else nothing. (The interpreter does not widen a scalar truth value.)"""
    return tl.where(condition, mask, False)
