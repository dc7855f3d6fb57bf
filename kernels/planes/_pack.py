"""Device code: ggml blocks to planes in one pass, a strip a program (see `format` and, for the same in torch, `pack`).

Rows of several matrices of one shape, one after the other, are items; an item goes to its own place of the output.
With PAIR a strip is 16 rows of the first matrix and the 16 beside them of the second.
FMT is `PlaneFormat.packed`. Blocks have BW weights, BB bytes and groups of GROUP weights.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels.planes._blocks import byte, code, low, low_bits, low_step, scale, scale_bits, step
from kernels.planes._load import scale_words


@triton.jit
def _row(p_a, p_b, r, strip, rows, row_bytes, PAIR: tl.constexpr):
    """Row r of a strip, and whether there is one."""
    if PAIR:
        row = strip * 16 + r % 16
        p = tl.where(r < 16, p_a + row.to(tl.int64) * row_bytes, p_b + row.to(tl.int64) * row_bytes)
    else:
        row = strip * 32 + r
        p = p_a + row.to(tl.int64) * row_bytes
    return p, row < rows


@triton.jit
def _code(p_row, there, k, columns, p_grid, TYPE: tl.constexpr, BW: tl.constexpr, BB: tl.constexpr):
    """The code of column k of a row; 0 beyond the last column."""
    inside = there & (k < columns)
    value = code(p_row + k // BW * BB, k % BW, inside, p_grid, TYPE)
    return tl.where(k < columns, value, 0)


@triton.jit
def _half_bits(value):
    return value.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF


@triton.jit
def _bounds(p_a, p_b, p_bad, strip, rows, row_bytes, blocks, FMT: tl.constexpr, TYPE: tl.constexpr, BW: tl.constexpr,
            BB: tl.constexpr, GROUP: tl.constexpr, PAIR: tl.constexpr,
            BT: tl.constexpr):  # fmt: skip
    """The exponent of a strip as `pack._exponents` has it; counts scales that are no numbers."""
    STEP: tl.constexpr = (FMT >> 10) & 3
    ODD: tl.constexpr = (FMT >> 12) & 1
    LOW: tl.constexpr = (FMT >> 13) & 1
    r = tl.arange(0, 32)
    p_row, there = _row(p_a, p_b, r, strip, rows, row_bytes, PAIR)
    worst = tl.zeros((32, BT), tl.float32)
    bad = tl.zeros((32, BT), tl.int32)
    first = 0
    while first < blocks:
        n = first + tl.arange(0, BT)[None, :]
        inside = there[:, None] & (n < blocks)
        p = p_row[:, None] + n * BB
        bad += ((scale_bits(p, inside, TYPE) & 0x7C00) == 0x7C00).to(tl.int32)
        d = tl.abs(scale(p, inside, TYPE))
        if LOW:
            bad += ((low_bits(p, inside, TYPE) & 0x7C00) == 0x7C00).to(tl.int32)
            offset = tl.abs(low(p, inside, TYPE))
            worst = tl.maximum(worst, offset / 8)
        if STEP == 0:
            worst = tl.maximum(worst, d * 257.0)
        else:
            most = tl.zeros((32, BT), tl.int32)
            most_low = tl.zeros((32, BT), tl.int32)
            for g in tl.static_range(BW // GROUP):
                s = step(p, n * 0 + g, inside, TYPE)
                most = tl.maximum(most, tl.abs(2 * s + 1) if ODD else tl.abs(s))
                if LOW:
                    most_low = tl.maximum(most_low, low_step(p, n * 0 + g, inside, TYPE))
            worst = tl.maximum(worst, d * most.to(tl.float32) * 257.0)
            if LOW:
                worst = tl.maximum(worst, offset * most_low.to(tl.float32) / 8)
        worst = tl.maximum(worst, d / 8)
        first += BT
    found = tl.sum(bad, axis=1)
    TIMES: tl.constexpr = 256 if TYPE == "IQ1_M" else 1
    if PAIR:
        tl.atomic_add(p_bad, tl.sum(tl.where(r < 16, found, 0), axis=0) * TIMES)
        tl.atomic_add(p_bad + 1, tl.sum(tl.where(r < 16, 0, found), axis=0) * TIMES)
    else:
        tl.atomic_add(p_bad, tl.sum(found, axis=0) * TIMES)
    bound = tl.max(tl.max(worst, axis=1), axis=0)
    # As frexp: the value is below 2^exponent and not below half of it; 0 for 0. No bound is a subnormal.
    bits = bound.to(tl.int32, bitcast=True)
    return tl.where(bits == 0, 0, ((bits >> 23) & 255) - 126)


@triton.jit
def _four(p_a, p_b, p_to, strip, chunk, rows, row_bytes, columns, p_grid, TYPE: tl.constexpr, BW: tl.constexpr,
          BB: tl.constexpr, PAIR: tl.constexpr):  # fmt: skip
    """The four low bits of all codes: [q g][lane][m], code (h, i) at bit 16 h + 4 i."""
    w = tl.arange(0, 512)
    r = w // 128 % 2 * 16 + w // 256 * 8 + w // 16 % 8
    p_row, there = _row(p_a, p_b, r, strip, rows, row_bytes, PAIR)
    k = chunk * 128 + w // 2 % 2 * 64 + w // 4 % 4 * 16 + w % 2 * 8
    word = w * 0
    for n in tl.static_range(8):
        word |= (_code(p_row, there, k + n, columns, p_grid, TYPE, BW, BB) & 15) << (n // 4 * 16 + n % 4 * 4)
    tl.store(p_to + w, word)


@triton.jit
def _two(p_a, p_b, p_to, strip, chunk, rows, row_bytes, columns, p_grid, SHIFT: tl.constexpr, TYPE: tl.constexpr,
         BW: tl.constexpr, BB: tl.constexpr, PAIR: tl.constexpr):  # fmt: skip
    """Two bits of all codes, from bit SHIFT on: [q][lane][g mj], code (mr, h, i) at bit 16 h + 4 i + 2 mr."""
    w = tl.arange(0, 256)[:, None]
    n = tl.arange(0, 16)[None, :]
    p_row, there = _row(p_a, p_b, w // 2 % 2 * 16 + w // 128 * 8 + w // 16 % 8, strip, rows, row_bytes, PAIR)
    k = chunk * 128 + w % 2 * 64 + w // 4 % 4 * 16 + n
    found = (_code(p_row, there, k, columns, p_grid, TYPE, BW, BB) >> SHIFT) & 3
    # Every field has bits of its own, so sums are unions.
    word = tl.sum(found << (n // 4 % 2 * 16 + n % 4 * 4 + n // 8 * 2), axis=1)
    tl.store(p_to + tl.arange(0, 256), word)


@triton.jit
def _one(p_a, p_b, p_to, strip, chunk, rows, row_bytes, columns, p_grid, SHIFT: tl.constexpr, TYPE: tl.constexpr,
         BW: tl.constexpr, BB: tl.constexpr, PAIR: tl.constexpr):  # fmt: skip
    """Bit SHIFT of all codes: [lane][q g], code (m, h, i) at bit 16 h + 4 i + m."""
    w = tl.arange(0, 128)[:, None]
    n = tl.arange(0, 32)[None, :]
    p_row, there = _row(p_a, p_b, w % 2 * 16 + w // 2 % 2 * 8 + w // 16, strip, rows, row_bytes, PAIR)
    k = chunk * 128 + w // 4 % 4 * 16 + n // 16 * 64 + n % 16
    found = (_code(p_row, there, k, columns, p_grid, TYPE, BW, BB) >> SHIFT) & 1
    word = tl.sum(found << (n // 4 % 2 * 16 + n % 4 * 4 + n // 16 * 2 + n // 8 % 2), axis=1)
    tl.store(p_to + tl.arange(0, 128), word)


@triton.jit
def _eight(p_a, p_b, p_to, strip, chunk, rows, row_bytes, columns, p_grid, TYPE: tl.constexpr, BW: tl.constexpr,
           BB: tl.constexpr, PAIR: tl.constexpr):  # fmt: skip
    """Codes of a byte: [i / 2][q g][lane][m], code (i % 2, h) at bit 16 (i % 2) + 8 h."""
    w = tl.arange(0, 1024)
    r = w // 128 % 2 * 16 + w // 256 % 2 * 8 + w // 16 % 8
    p_row, there = _row(p_a, p_b, r, strip, rows, row_bytes, PAIR)
    k = chunk * 128 + w // 2 % 2 * 64 + w // 4 % 4 * 16 + w % 2 * 8 + w // 512 * 2
    word = w * 0
    for n in tl.static_range(4):
        found = _code(p_row, there, k + n // 2 + n % 2 * 4, columns, p_grid, TYPE, BW, BB)
        word |= (found & 255) << (n // 2 * 16 + n % 2 * 8)
    tl.store(p_to + w, word)


@triton.jit
def _codebook(p_a, p_b, p_to, strip, chunk, rows, row_bytes, BB: tl.constexpr, PAIR: tl.constexpr):
    """IQ3_S: [q][lane][g mj] low bytes of indices (mr, h), signs as in `_one`, [lane] ninth bits (q g, m, h)."""
    half = chunk % 2
    block = chunk // 2 * BB
    w = tl.arange(0, 256)
    r = w // 2 % 2 * 16 + w // 128 * 8 + w // 16 % 8
    p_row, there = _row(p_a, p_b, r, strip, rows, row_bytes, PAIR)
    first = half * 32 + w % 2 * 16 + w // 4 % 4 * 4
    word = w * 0
    for n in tl.static_range(4):
        word |= byte(p_row + block, 2 + first + n, there) << (8 * n)
    tl.store(p_to + w, word)
    v = tl.arange(0, 128)
    p_row, there = _row(p_a, p_b, v % 2 * 16 + v // 2 % 2 * 8 + v // 16, strip, rows, row_bytes, PAIR)
    word = v * 0
    for m in tl.static_range(4):
        signs = byte(p_row + block, 74 + half * 16 + m // 2 * 8 + v // 4 % 4 * 2 + m % 2, there)
        for n in tl.static_range(8):
            word |= ((signs >> n) & 1) << (n // 4 * 16 + n % 4 * 4 + m)
    tl.store(p_to + 256 + v, word)
    lane = tl.arange(0, 32)
    word = lane * 0
    for n in tl.static_range(8):
        r = lane // 4 + n // 2 % 2 * 16 + n // 4 * 8
        p_row, there = _row(p_a, p_b, r, strip, rows, row_bytes, PAIR)
        high = byte(p_row + block, 66 + half * 4 + n % 2 * 2 + lane % 4 // 2, there)
        word |= ((high >> (lane % 2 * 4)) & 15) << (n // 2 * 8 + n % 2 * 4)
    tl.store(p_to + 384 + lane, word)


@triton.jit
def _direct(p_a, p_b, p_to, strip, chunk, rows, row_bytes, columns, factor, LOW: tl.constexpr, TYPE: tl.constexpr,
            BW: tl.constexpr, BB: tl.constexpr, PAIR: tl.constexpr):  # fmt: skip
    """Scales of groups of 32: [a][b / 2][q g], mj in halves; then offsets."""
    w = tl.arange(0, 64)
    r = w % 2 * 16 + w // 2 % 2 * 8 + w // 8
    p_row, there = _row(p_a, p_b, r, strip, rows, row_bytes, PAIR)
    word = w * 0
    offsets = w * 0
    for mj in tl.static_range(2):
        k = chunk * 128 + mj * 64 + w // 4 % 2 * 32
        inside = there & (k < columns)
        p = p_row + k // BW * BB
        word |= _half_bits(scale(p, inside, TYPE) * factor) << (16 * mj)
        if LOW:
            offsets |= _half_bits(low(p, inside, TYPE) * factor) << (16 * mj)
    tl.store(p_to + w, word)
    if LOW:
        tl.store(p_to + 64 + w, offsets)


@triton.jit
def _stepped(p_a, p_b, p_to, strip, chunk, rows, row_bytes, factor, FMT: tl.constexpr, TYPE: tl.constexpr,
             BW: tl.constexpr, BB: tl.constexpr, PAIR: tl.constexpr):  # fmt: skip
    """Integer steps and one fp16 of a row and tile, as `bits.step_words` and those after it lay them out."""
    G16: tl.constexpr = (FMT >> 9) & 1
    STEP: tl.constexpr = (FMT >> 10) & 3
    LOW: tl.constexpr = (FMT >> 13) & 1
    EACH: tl.constexpr = 8 if G16 else 4
    block = chunk // (BW // 128) * BB
    first = chunk % (BW // 128) * EACH
    w = tl.arange(0, 32)  # [a][q g]
    p_row, there = _row(p_a, p_b, w % 2 * 16 + w // 2 % 2 * 8 + w // 4, strip, rows, row_bytes, PAIR)
    p = p_row + block
    d = _half_bits(scale(p, there, TYPE) * factor)
    if STEP == 1 and not G16:
        word = d
        for g in tl.static_range(4):
            word |= step(p, w * 0 + first + g, there, TYPE) << (16 + 4 * g)
        tl.store(p_to + w, word)
    else:
        BIAS: tl.constexpr = 128 if STEP == 2 else 0
        SIZE: tl.constexpr = 64 if (STEP == 2 and G16) else 32
        if STEP == 2 and G16:
            v = tl.arange(0, 64)  # [a][b / 2][q g]
            p_row16, there16 = _row(p_a, p_b, v % 2 * 16 + v // 2 % 2 * 8 + v // 8, strip, rows, row_bytes, PAIR)
            word = v * 0
            for n in tl.static_range(4):
                g = first + n // 2 * 4 + v // 4 % 2 * 2 + n % 2
                word |= ((step(p_row16 + block, g, there16, TYPE) + BIAS) & 255) << (8 * n)
            tl.store(p_to + v, word)
        else:
            word = w * 0
            lows = w * 0
            for g in tl.static_range(EACH):
                word |= (step(p, w * 0 + first + g, there, TYPE) + BIAS) << (4 * STEP * g)
                if LOW:
                    lows |= (low_step(p, w * 0 + first + g, there, TYPE) + BIAS) << (4 * STEP * g)
            tl.store(p_to + w, word)
            if LOW:
                tl.store(p_to + SIZE + w, lows)
        if LOW:
            tl.store(p_to + 2 * SIZE + w, d | (_half_bits(low(p, there, TYPE) * factor) << 16))
        else:
            v = tl.arange(0, 16)  # [a][q], g in halves
            word = v * 0
            for g in tl.static_range(2):
                p_row2, there2 = _row(p_a, p_b, g * 16 + v % 2 * 8 + v // 2, strip, rows, row_bytes, PAIR)
                word |= _half_bits(scale(p_row2 + block, there2, TYPE) * factor) << (16 * g)
            tl.store(p_to + SIZE + v, word)


@triton.constexpr_function
def stepless(fmt):
    """Whether scales are fp16 each."""
    return (fmt >> 10) & 3 == 0


@triton.jit
def _tile(p_a, p_b, p_to, strip, chunk, rows, row_bytes, columns, p_grid, FMT: tl.constexpr, TYPE: tl.constexpr,
          BW: tl.constexpr, BB: tl.constexpr, PAIR: tl.constexpr):  # fmt: skip
    """The codes of a tile."""
    BITS: tl.constexpr = FMT & 63
    if (FMT >> 23) & 1:
        _codebook(p_a, p_b, p_to, strip, chunk, rows, row_bytes, BB, PAIR)
    elif BITS == 8:
        _eight(p_a, p_b, p_to, strip, chunk, rows, row_bytes, columns, p_grid, TYPE, BW, BB, PAIR)
    else:
        if BITS >= 4:
            _four(p_a, p_b, p_to, strip, chunk, rows, row_bytes, columns, p_grid, TYPE, BW, BB, PAIR)
        else:
            _two(p_a, p_b, p_to, strip, chunk, rows, row_bytes, columns, p_grid, 0, TYPE, BW, BB, PAIR)
        if BITS == 6:
            _two(p_a, p_b, p_to + 512, strip, chunk, rows, row_bytes, columns, p_grid, 4, TYPE, BW, BB, PAIR)
        elif BITS == 5 or BITS == 3:
            AT: tl.constexpr = BITS - 1
            _one(p_a, p_b, p_to + AT * 128, strip, chunk, rows, row_bytes, columns, p_grid, AT, TYPE, BW, BB, PAIR)


_NUMBERS = ["step_bytes", "rows", "row_bytes", "columns", "strips", "skip"]


# Compiled once for each type, whatever the sizes: a model's first start should not wait for each shape.
@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=["p_first", "p_second", "p_out", "p_at"])
def pack_kernel(p_first, p_second, p_out, p_at, p_bad, p_grid, step_bytes, rows, row_bytes, columns, strips, skip,
                FMT: tl.constexpr, TYPE: tl.constexpr, BW: tl.constexpr, BB: tl.constexpr, GROUP: tl.constexpr,
                PAIR: tl.constexpr, BT: tl.constexpr):  # fmt: skip
    """Grid (items * strips). p_at: int64 [items], words from p_out where an item goes; negative: nowhere.

    step_bytes: from an item to the next. skip: words of an item before these planes. p_bad: int32 [1, or 2 with PAIR],
    added to.
    """
    CW: tl.constexpr = 416 if (FMT >> 23) & 1 else (FMT & 63) * 128
    SW: tl.constexpr = scale_words(FMT)
    chunks = (columns + 127) // 128
    item, strip = tl.program_id(0) // strips, tl.program_id(0) % strips
    place = tl.load(p_at + item)
    if place >= 0:
        p_a = p_first + item.to(tl.int64) * step_bytes
        p_b = p_second + item.to(tl.int64) * step_bytes
        p_strip = p_out + place + skip + strip.to(tl.int64) * (chunks * (CW + SW) + 4)
        blocks = columns // BW
        exponent = _bounds(p_a, p_b, p_bad, strip, rows, row_bytes, blocks, FMT, TYPE, BW, BB, GROUP, PAIR, BT)
        tail = tl.arange(0, 4)
        tl.store(p_strip + chunks * (CW + SW) + tail, tl.where(tail == 0, (127 + exponent) << 23, 0))
        factor = ((127 + 12 - exponent) << 23).to(tl.float32, bitcast=True)
        chunk = 0
        while chunk < chunks:
            _tile(p_a, p_b, p_strip + chunk * CW, strip, chunk, rows, row_bytes, columns, p_grid, FMT, TYPE, BW, BB,
                  PAIR)  # fmt: skip
            p_scales = p_strip + chunks * CW + chunk * SW
            if stepless(FMT):
                _direct(p_a, p_b, p_scales, strip, chunk, rows, row_bytes, columns, factor, (FMT >> 13) & 1, TYPE, BW,
                        BB, PAIR)  # fmt: skip
            else:
                _stepped(p_a, p_b, p_scales, strip, chunk, rows, row_bytes, factor, FMT, TYPE, BW, BB, PAIR)
            chunk += 1
