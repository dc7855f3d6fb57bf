"""Device code: planes to a plain matrix, for products with many rows."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels.device import pair
from kernels.planes._decode import _codes, _operand, _scales
from kernels.planes._load import load_chunk, scale_words


@triton.jit
def _quad(codes, high_codes, even, odd, offset, r0, r1, r2, r3, r4, r5, r6, r7, QUAD: tl.constexpr,
          FMT: tl.constexpr):  # fmt: skip
    """float32 values of inputs i = QUAD, [b, a, 1, T, qg, m, h], without the multiplier."""
    BITS: tl.constexpr = FMT & 63
    if BITS >= 16:
        if QUAD == 0:
            first = r0
            second = r4
        elif QUAD == 1:
            first = r1
            second = r5
        elif QUAD == 2:
            first = r2
            second = r6
        else:
            first = r3
            second = r7
        if BITS == 16:
            value = pair(first).to(tl.float32)
        else:
            value = tl.join(first.to(tl.float32, bitcast=True), second.to(tl.float32, bitcast=True))
    else:
        value = _operand(codes, high_codes, even, odd, offset, QUAD, FMT, True)
    return value


@triton.jit
def unpack_kernel(p_strips, p_out, p_rest, p_grid, N, K, FMT: tl.constexpr, T: tl.constexpr, NCH: tl.constexpr,
                  STRIPS: tl.constexpr, REST: tl.constexpr):  # fmt: skip
    """Grid (strips / T, chunks): out [N, K] in its own type; with REST, what rounding to it left, in rest [N, K]."""
    BITS: tl.constexpr = FMT & 63
    strip = tl.program_id(0) * T
    chunk = tl.program_id(1)
    r0, r1, r2, r3, r4, r5, r6, r7 = load_chunk(p_strips, strip, chunk, FMT, NCH, STRIPS, 1, T, T, 0)
    codes = r0
    high_codes = r0
    even = r4
    odd = r4
    offset = r4
    if BITS < 16:
        even, odd, offset = _scales(r4, r5, r6, FMT, 1, T, True)
        codes, high_codes = _codes(r0, r1, r2, p_grid, FMT, 1, T)
    v0 = _quad(codes, high_codes, even, odd, offset, r0, r1, r2, r3, r4, r5, r6, r7, 0, FMT)
    v1 = _quad(codes, high_codes, even, odd, offset, r0, r1, r2, r3, r4, r5, r6, r7, 1, FMT)
    v2 = _quad(codes, high_codes, even, odd, offset, r0, r1, r2, r3, r4, r5, r6, r7, 2, FMT)
    v3 = _quad(codes, high_codes, even, odd, offset, r0, r1, r2, r3, r4, r5, r6, r7, 3, FMT)
    value = tl.join(tl.join(v0, v2), tl.join(v1, v3)).reshape(4, 8, T, 4, 4, 8)  # b a T qg m (h i)
    b = tl.arange(0, 4)[:, None, None, None, None, None]
    a = tl.arange(0, 8)[None, :, None, None, None, None]
    t = tl.arange(0, T)[None, None, :, None, None, None]
    qg = tl.arange(0, 4)[None, None, None, :, None, None]
    m = tl.arange(0, 4)[None, None, None, None, :, None]
    hi = tl.arange(0, 8)[None, None, None, None, None, :]
    LENGTH: tl.constexpr = NCH * ((416 if (FMT >> 23) & 1 else BITS * 128) + scale_words(FMT)) + 4
    tail = (tl.minimum(strip + t, STRIPS - 1) + 1) * LENGTH - 4
    value = value * tl.load(p_strips + tail).to(tl.float32, bitcast=True)
    row = (strip + t) * 32 + 16 * (qg % 2) + 8 * (qg // 2) + a
    k = chunk * 128 + 64 * (m // 2) + 16 * b + 8 * (m % 2) + hi
    mask = (row < N) & (k < K)
    rounded = value.to(p_out.dtype.element_ty)
    tl.store(p_out + row * K + k, rounded, mask=mask)
    if REST:
        tl.store(p_rest + row * K + k, (value - rounded.to(tl.float32)).to(p_rest.dtype.element_ty), mask=mask)
