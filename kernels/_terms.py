"""Device side of what many decode kernels share: sums of partial results (in the order of the terms), masks."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl


@triton.jit
def sum_terms(p_value, o_value, o_term, mask, TERMS: tl.constexpr):
    """Sum over terms of the values at `o_value`; terms lie `o_term` values apart. Masked values are zero."""
    total = tl.load(p_value + o_value, mask=mask, other=0.0)
    for i in tl.static_range(1, TERMS):
        total += tl.load(p_value + o_value + i * o_term, mask=mask, other=0.0)
    return total


@triton.jit
def limit(SIZE: tl.constexpr, condition):
    """SIZE where the scalar condition holds, else 0: a mask `block < limit` is one comparison."""
    return tl.where(condition, SIZE, 0)
