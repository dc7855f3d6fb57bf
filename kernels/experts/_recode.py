"""Device code: the two forms of IQ3_S planes (`kernels.planes.format`), codebook indices and 4-bit codes, both ways.

A program has one tile; programs of chunk 0 also copy the strip's tail. A strip: all codes, all scales, tail.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

CODES = tl.constexpr(512)
COMPACT = tl.constexpr(416)
SCALES = tl.constexpr(32)
TAIL = tl.constexpr(4)
ONES = tl.constexpr(0x11111111)


@triton.jit
def _rest(p_from, p_to, FROM: tl.constexpr, TO: tl.constexpr, NCH: tl.constexpr):
    """Copies the tile's scales, and the tail; FROM and TO are code words of a tile."""
    chunk = tl.program_id(1)
    s = chunk * SCALES + tl.arange(0, SCALES)
    tl.store(p_to + NCH * TO + s, tl.load(p_from + NCH * FROM + s))
    if chunk == 0:
        t = NCH * SCALES + tl.arange(0, TAIL)
        tl.store(p_to + NCH * TO + t, tl.load(p_from + NCH * FROM + t))


@triton.jit
def spread_kernel(p_from, p_to, p_book, NCH: tl.constexpr):
    """Grid (strips, chunks). Indices to codes: p_book uint16 [512], four nibbles 8 + level."""
    p_from += tl.program_id(0) * (NCH * (COMPACT + SCALES) + TAIL)
    p_to += tl.program_id(0) * (NCH * (CODES + SCALES) + TAIL)
    _rest(p_from, p_to, COMPACT, CODES, NCH)
    p_from += tl.program_id(1) * COMPACT
    word = tl.arange(0, CODES)
    qg, lane, m = word // 128, word // 4 % 32, word % 4
    pairs = tl.load(p_from + qg // 2 * 128 + lane * 4 + qg % 2 * 2 + m // 2) >> (m % 2 * 16)
    ninth = tl.load(p_from + 384 + lane) >> (qg * 8 + m * 2)
    first = tl.load(p_book + ((pairs & 255) | ((ninth & 1) << 8))).to(tl.int32)
    second = tl.load(p_book + (((pairs >> 8) & 255) | (((ninth >> 1) & 1) << 8))).to(tl.int32)
    negative = (tl.load(p_from + 256 + lane * 4 + qg) >> m) & ONES
    # 8 + level with all four bits turned is 7 - level.
    tl.store(p_to + tl.program_id(1) * CODES + word, (first | (second << 16)) ^ (negative * 15))


@triton.jit
def compact_kernel(p_from, p_to, p_index, NCH: tl.constexpr):
    """Grid (strips, chunks). Codes to indices: p_index int32 [4096], the index of four 3-bit levels."""
    p_from += tl.program_id(0) * (NCH * (CODES + SCALES) + TAIL)
    p_to += tl.program_id(0) * (NCH * (COMPACT + SCALES) + TAIL)
    _rest(p_from, p_to, CODES, COMPACT, NCH)
    p_to += tl.program_id(1) * COMPACT
    qg = tl.arange(0, 4)[:, None, None]
    lane = tl.arange(0, 32)[None, :, None]
    m = tl.arange(0, 4)[None, None, :]
    code = tl.load(p_from + tl.program_id(1) * CODES + qg * 128 + lane * 4 + m)
    negative = ~(code >> 3) & ONES
    level = code ^ (negative * 15)
    key = (level & 0x00070007) | ((level >> 1) & 0x00380038) | ((level >> 2) & 0x01C001C0) | ((level >> 3) & 0x0E000E00)
    first = tl.load(p_index + (key & 4095))
    second = tl.load(p_index + ((key >> 16) & 4095))
    # Every field has bits of its own, so sums are unions.
    low = ((first & 255) | ((second & 255) << 8)) << (m % 2 * 16)
    low = tl.sum(tl.reshape(low, (4, 32, 2, 2)), axis=3)
    mj = tl.arange(0, 2)[None, None, :]
    tl.store(p_to + qg // 2 * 128 + lane * 4 + qg % 2 * 2 + mj, low)
    signs = tl.sum(negative << m, axis=2)
    o_sign = tl.arange(0, 32)[None, :] * 4 + tl.arange(0, 4)[:, None]
    tl.store(p_to + 256 + o_sign, signs)
    ninth = ((first >> 8) | ((second >> 8) << 1)) << (qg * 8 + m * 2)
    tl.store(p_to + 384 + tl.arange(0, 32), tl.sum(tl.sum(ninth, axis=2), axis=0))
