"""Device code: words of planes to operands of a product, and the loop over the inputs of a strip.

Tensors have the dimensions [b 4, a 8, S warps, T tiles, q g 4, m 4], S * T strips or chunks at a time; lane 4 a + b.
FMT is `PlaneFormat.packed`. A fast operand is fp16: a code is the bits of a subnormal, code * 2^-24 (or 2^-20 in the
odd nibbles), and one packed multiply-add applies scale and offset. With EXACT everything is float32.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels.device import dot, fma2, gdc_launch, gdc_wait, mul2, pair, prmt, u32c
from kernels.planes._load import load_chunk, scale_words


@triton.jit
def _steps(w, FMT: tl.constexpr):
    """Steps of a lane as fp16 integers, mj = 0 and 1 in the halves; w [b, a, S, T, qg] holds all of a row's."""
    b = tl.arange(0, 4)[:, None, None, None, None]
    G16: tl.constexpr = (FMT >> 9) & 1
    if (FMT >> 10) & 3 == 2:
        at = (b % 2) if G16 else (b // 2)
        n = ((w >> (8 * at)) & 0x00FF00FF) | 0x64006400
        n = fma2(n, u32c(n, 0x3C003C00), u32c(n, 0xE480E480))  # (1024 + byte) - 1152
    else:
        if G16:
            n = ((w >> (4 * b)) & 0x000F000F) | 0x64006400
        else:
            n = prmt((w >> (16 + 4 * (b // 2))) & 0x0F0F, u32c(w, 0x64646464), u32c(w, 0x4140))
        if (FMT >> 12) & 1:
            n = fma2(n, u32c(n, 0x40004000), u32c(n, 0xE7FFE7FF))  # 2 (1024 + s) - 2047
        else:
            n = fma2(n, u32c(n, 0x3C003C00), u32c(n, 0xE400E400))
    return n


@triton.jit
def _factor(r4, r6, FMT: tl.constexpr, S: tl.constexpr, T: tl.constexpr):
    """fp16 d of a row in both halves, [b, a, S, T, qg]."""
    if (FMT >> 13) & 1:
        d = prmt(r6, r6, u32c(r6, 0x1010))
    elif ((FMT >> 10) & 3 == 1) and ((FMT >> 9) & 1 == 0):
        d = prmt(r4, r4, u32c(r4, 0x1010))
    else:
        g = tl.arange(0, 2)[None, None, None, None, None, :]
        d6 = tl.broadcast_to(r6[:, :, :, :, :, None], (4, 8, S, T, 2, 2))
        d = prmt(d6, d6, u32c(d6, 0) + (0x1010 + 0x2222 * g).to(tl.uint32)).reshape(4, 8, S, T, 4)
    return d


@triton.jit
def _spread(w, S: tl.constexpr, T: tl.constexpr):
    """Halves mj of [b, a, S, T, qg], each in both halves of its word, over mr: [b, a, S, T, qg, m]."""
    mj = tl.arange(0, 2)[None, None, None, None, None, :]
    w = tl.broadcast_to(w[:, :, :, :, :, None], (4, 8, S, T, 4, 2))
    d = prmt(w, w, u32c(w, 0) + (0x1010 + 0x2222 * mj).to(tl.uint32))
    return tl.broadcast_to(d[:, :, :, :, :, :, None], (4, 8, S, T, 4, 2, 2)).reshape(4, 8, S, T, 4, 4)


@triton.jit
def _spread_exact(v, S: tl.constexpr, T: tl.constexpr):
    """float32 [b, a, S, T, qg, mj] over mr and h: [b, a, S, T, qg, m, h]."""
    return tl.broadcast_to(v[:, :, :, :, :, :, None, None], (4, 8, S, T, 4, 2, 2, 2)).reshape(4, 8, S, T, 4, 4, 2)


@triton.jit
def _scales(r4, r5, r6, FMT: tl.constexpr, S: tl.constexpr, T: tl.constexpr, EXACT: tl.constexpr):
    """Scale and offset. Fast: scale * 2^24, scale * 2^20 and offset as halves of words; exact: scale, -, offset."""
    STEP: tl.constexpr = (FMT >> 10) & 3
    LOW: tl.constexpr = (FMT >> 13) & 1
    ZERO: tl.constexpr = ((FMT >> 14) & 511) / 2
    if EXACT:
        if STEP == 0:
            scale = pair(r4).to(tl.float32)
            low = pair(r5).to(tl.float32)
        else:
            scale = pair(_steps(r4, FMT)).to(tl.float32) * pair(_factor(r4, r6, FMT, S, T)).to(tl.float32)
            low = scale
            if LOW:
                low = pair(_steps(r5, FMT)).to(tl.float32) * pair(prmt(r6, r6, u32c(r6, 0x3232))).to(tl.float32)
        even = _spread_exact(scale * 0.000244140625, S, T)
        odd = even
        offset = even
        if LOW:
            offset = _spread_exact(low * 0.000244140625, S, T)
    else:
        if STEP == 0:
            scale = r4
            low = r5
        else:
            scale = mul2(_steps(r4, FMT), _factor(r4, r6, FMT, S, T))
            low = scale
            if LOW:
                low = mul2(_steps(r5, FMT), prmt(r6, r6, u32c(r6, 0x3232)))
        # Spread once, then multiplied: a packed product costs half of a byte permutation.
        scale = _spread(scale, S, T)
        even = mul2(scale, u32c(scale, 0x6C006C00))
        odd = mul2(scale, u32c(scale, 0x5C005C00))
        if LOW:
            low = _spread(low, S, T)
            offset = mul2(low, u32c(low, 0x0C000C00))
        else:
            offset = mul2(scale, u32c(scale, half2(-ZERO / 4096)))
    return even, odd, offset


@triton.constexpr_function
def half2(value):
    """A number as fp16 in both halves of a word; powers of two times integers below 2048 only."""
    import struct

    (bits,) = struct.unpack("<H", struct.pack("<e", value))
    return bits | bits << 16


@triton.jit
def _by_pairs(w, S: tl.constexpr, T: tl.constexpr):
    """2-bit plane [b, a, S, T, q, g mj] to a nibble word for each [b, a, S, T, qg, m]."""
    mr = tl.arange(0, 2)[None, None, None, None, None, None, :]
    w = tl.broadcast_to(w[:, :, :, :, :, :, None], (4, 8, S, T, 2, 4, 2))
    return ((w >> (2 * mr)) & 0x33333333).reshape(4, 8, S, T, 4, 4)


@triton.jit
def _by_bits(w):
    """1-bit plane [b, a, S, T, qg] to a nibble word for each [b, a, S, T, qg, m]."""
    m = tl.arange(0, 4)[None, None, None, None, None, :]
    return (w[:, :, :, :, :, None] >> m) & 0x11111111


@triton.jit
def _from_codebook(r0, r1, r2, p_grid, S: tl.constexpr, T: tl.constexpr):
    """Nibble words 8 + level or 7 - level from indices, signs and ninth bits; p_grid: uint16 of 4 nibbles 8 + level."""
    mr = tl.arange(0, 2)[None, None, None, None, None, None, :]
    qg = tl.arange(0, 4)[None, None, None, None, :, None]
    m = tl.arange(0, 4)[None, None, None, None, None, :]
    ix = tl.broadcast_to(r0[:, :, :, :, :, :, None], (4, 8, S, T, 2, 4, 2))
    none = u32c(ix, 0)
    low = prmt(ix, none, none + (0x4440 + 2 * mr).to(tl.uint32)).reshape(4, 8, S, T, 4, 4)
    high = prmt(ix, none, none + (0x4441 + 2 * mr).to(tl.uint32)).reshape(4, 8, S, T, 4, 4)
    ninth = r2[:, :, :, :, :, None] >> (8 * qg + 2 * m)
    a = tl.load(p_grid + (low | ((ninth << 8) & 0x100))).to(tl.uint32)
    b = tl.load(p_grid + (high | ((ninth << 7) & 0x100))).to(tl.uint32)
    return (a | (b << 16)) ^ (_by_bits(r1) * 15)


@triton.jit
def load_levels(p_levels, FMT: tl.constexpr):
    """Words of a format's byte table and a mask, from `planes.level_words`; of any format, so that all have some."""
    p_table = p_levels + ((FMT >> 6) & 7) * 5
    return tl.load(p_table), tl.load(p_table + 1), tl.load(p_table + 2), tl.load(p_table + 3), tl.load(p_table + 4)


@triton.jit
def _levels_like(w, levels, TABLE: tl.constexpr):
    """Five words of `load_levels`, each like w. Constants instead of loaded ones would be moved before each use."""
    none = w ^ w
    if levels is None:
        t0 = u32c(w, table_word(TABLE, 0))
        t1 = u32c(w, table_word(TABLE, 1))
        t2 = u32c(w, table_word(TABLE, 2)) if TABLE <= 2 else none
        t3 = u32c(w, table_word(TABLE, 3)) if TABLE <= 2 else none
        mask = u32c(w, 0x44444444)
    else:
        t0 = none | levels[0]
        t1 = none | levels[1]
        t2 = none | levels[2]
        t3 = none | levels[3]
        mask = none | levels[4]
    return t0, t1, t2, t3, mask


@triton.jit
def _bytes_of_table(w, levels, TABLE: tl.constexpr):
    """level + 128 of the eight nibbles (h, i): words (h0 i0, h1 i0, h0 i1, h1 i1) and the same for i = 2, 3."""
    t0, t1, t2, t3, mask = _levels_like(w, levels, TABLE)
    w7 = w & 0x77777777
    low = prmt(t0, t1, w7)
    high = prmt(t0, t1, w7 >> 16)
    if TABLE <= 2:
        upper = ((w >> 1) & mask) | 0x32103210
        low = prmt(low, prmt(t2, t3, w7), upper)
        high = prmt(high, prmt(t2, t3, w7 >> 16), upper >> 16)
    return prmt(low, high, u32c(w, 0x5140)), prmt(low, high, u32c(w, 0x7362))


@triton.constexpr_function
def table_word(table, number):
    """Four entries of a byte table (level + 128) of `kernels.planes.format.TABLES`, by its number."""
    from kernels.planes.format import TABLES

    levels = list(TABLES.values())[table][4 * number : 4 * number + 4]
    return sum((level + 128) << (8 * place) for place, level in enumerate(levels))


@triton.jit
def _operand(codes, high_codes, even, odd, offset, QUAD: tl.constexpr, FMT: tl.constexpr, EXACT: tl.constexpr):
    """Values of input i = QUAD of each quad: fp16 words (h) or, exact, float32 [..., h]; codes are of `_codes`."""
    BITS: tl.constexpr = FMT & 63
    PLAIN: tl.constexpr = (BITS == 4 or BITS < 4) and (FMT >> 6) & 7 == 0
    if (BITS == 8) or ((FMT >> 6) & 7 > 0):
        word = codes if QUAD < 2 else high_codes
        value = prmt(word, u32c(word, 0), u32c(word, 0x4342 if QUAD % 2 else 0x4140))
    elif BITS > 4:
        above = high_codes << 4 if QUAD == 0 else high_codes >> (4 * QUAD - 4)
        value = ((codes >> (4 * QUAD)) & 0x000F000F) | (above & 0x00F000F0)
    elif EXACT:
        value = (codes >> (4 * QUAD)) & 0x000F000F
    else:
        value = (codes >> (8 * (QUAD // 2))) & (0x00F000F0 if QUAD % 2 else 0x000F000F)
    if EXACT:
        out = (tl.join(value & 0xFFFF, value >> 16).to(tl.float32) - ((FMT >> 14) & 511) / 2) * even
        if (FMT >> 13) & 1:
            out = out + offset
    elif PLAIN and QUAD % 2 == 1:
        out = fma2(value, odd, offset)
    else:
        out = fma2(value, even, offset)
    return out


@triton.jit
def _codes(r0, r1, r2, p_grid, FMT: tl.constexpr, S: tl.constexpr, T: tl.constexpr, levels=None):
    """Words that hold a quad pair's eight codes: nibbles and high bits, or bytes of i = 0, 1 and of i = 2, 3."""
    BITS: tl.constexpr = FMT & 63
    TABLE: tl.constexpr = (FMT >> 6) & 7
    low = r0
    high = r1
    if BITS < 8:
        if (FMT >> 23) & 1:
            low = _from_codebook(r0, r1, r2, p_grid, S, T)
        elif BITS < 4:
            low = _by_pairs(r0, S, T)
            if BITS == 3:
                low = low | (_by_bits(r1) << 2)
        if TABLE > 0:
            low, high = _bytes_of_table(low, levels, TABLE)
        elif BITS == 5:
            high = _by_bits(r1)
        elif BITS == 6:
            high = _by_pairs(r1, S, T)
    return low, high


@triton.jit
def _weights(value, S: tl.constexpr, T: tl.constexpr):
    """[b, a, S, T, qg, m, h] to the operand [S, 32 T, 32]."""
    p = value.reshape(4, 8, S, T, 2, 2, 2, 2, 2)  # b a S T q g mj mr h
    return tl.permute(p, (2, 3, 5, 4, 1, 6, 0, 7, 8)).reshape(S, 32 * T, 32)


@triton.jit
def _inputs(p_x, rows, chunk, QUAD: tl.constexpr, S: tl.constexpr, RT: tl.constexpr, NCH: tl.constexpr,
            STEP_CHUNK: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """Inputs i = QUAD of the quads of chunk (+ STEP_CHUNK * s): the operand [S, 32, 8 RT].

    rows: of the operand rows that p_x points to (uint32 words of fp16, or float32), [1, 1, 8 RT] if EXACT,
    else [1, 8, 1, RT, 1] with row 8 rt + a at (a, rt).
    """
    if EXACT:
        s = tl.arange(0, S)[:, None, None]
        quad = tl.arange(0, 32)[None, :, None]
        x = tl.load(p_x + rows * (NCH * 128) + (chunk + s * STEP_CHUNK) * 128 + quad * 4 + QUAD)
    else:
        b = tl.arange(0, 4)[:, None, None, None, None]
        s = tl.arange(0, S)[None, None, :, None, None]
        m = tl.arange(0, 4)[None, None, None, None, :]
        words = tl.load(p_x + rows * (NCH * 64) + ((chunk + s * STEP_CHUNK) * 64 + b * 4 + m) + QUAD * 16)
        p = pair(words).reshape(4, 8, S, RT, 2, 2, 2)  # b a S rt mr mj h
        x = tl.permute(p, (2, 5, 0, 4, 6, 3, 1)).reshape(S, 32, 8 * RT)
    return x


@triton.jit
def _multiply(acc, r0, r1, r2, r3, r4, r5, r6, r7, p_x, rows, chunk, p_grid, FMT: tl.constexpr, S: tl.constexpr,
              T: tl.constexpr, RT: tl.constexpr, NCH: tl.constexpr, STEP_CHUNK: tl.constexpr, EXACT: tl.constexpr,
              levels=None):  # fmt: skip
    """acc [S, 32 T, 8 RT] plus the product of one chunk; levels: of `load_levels`, for formats with a table."""
    BITS: tl.constexpr = FMT & 63
    if BITS < 16:
        even, odd, offset = _scales(r4, r5, r6, FMT, S, T, EXACT)
        codes, high_codes = _codes(r0, r1, r2, p_grid, FMT, S, T, levels)
    for i in tl.static_range(4):
        x = _inputs(p_x, rows, chunk, i, S, RT, NCH, STEP_CHUNK, EXACT)
        if BITS >= 16:
            if i == 0:
                first = r0
                second = r4
            elif i == 1:
                first = r1
                second = r5
            elif i == 2:
                first = r2
                second = r6
            else:
                first = r3
                second = r7
        if BITS == 16:
            w = pair(first)
            acc = dot(_weights(w.to(tl.float32) if EXACT else w, S, T), x, acc, EXACT)
        elif BITS == 32:
            full = tl.join(first.to(tl.float32, bitcast=True), second.to(tl.float32, bitcast=True))
            if EXACT:
                acc = dot(_weights(full, S, T), x, acc, EXACT)
            else:  # two halves hold 22 bits of a float32; their products with fp16 inputs are exact
                w = full.to(tl.float16)
                acc = dot(_weights(w, S, T), x, acc, EXACT)
                acc = dot(_weights((full - w.to(tl.float32)).to(tl.float16), S, T), x, acc, EXACT)
        else:
            w = _operand(codes, high_codes, even, odd, offset, i, FMT, EXACT)
            acc = dot(_weights(w if EXACT else pair(w), S, T), x, acc, EXACT)
    return acc


@triton.jit
def _multiplier(p_strips, strip, FMT: tl.constexpr, NCH: tl.constexpr, STRIPS: tl.constexpr):
    """What products of a strip are multiplied with; strips beyond the last have the last one's."""
    LENGTH: tl.constexpr = NCH * ((416 if (FMT >> 23) & 1 else (FMT & 63) * 128) + scale_words(FMT)) + 4
    return tl.load(p_strips + (tl.minimum(strip, STRIPS - 1) + 1) * LENGTH - 4).to(tl.float32, bitcast=True)


@triton.jit
def strip_products(p_strips, strip, chunk, p_x, rows, p_grid, FMT: tl.constexpr, S: tl.constexpr, T: tl.constexpr,
                   RT: tl.constexpr, NCH: tl.constexpr, STRIPS: tl.constexpr, COUNT: tl.constexpr,
                   STEP_STRIP: tl.constexpr, STEP_CHUNK: tl.constexpr, EXACT: tl.constexpr, PDL: tl.constexpr,
                   levels=None, ONCE: tl.constexpr = False):  # fmt: skip
    """Products of S * T strips with up to 8 RT rows, over COUNT chunks.

    STEP_CHUNK 1: the warps take every S-th chunk from `chunk` on of the same T strips. 0: each its own T strips, with
    STEP_STRIP T. The next chunk's words are loaded before the arithmetic of this one; with PDL, the first chunk's
    before the wait, so p_strips must not depend on the launch before. ONCE: as of `load_chunk`.

    Returns:
        float32 [S, 32 T, 8 RT], multiplier applied.
    """
    JUMP: tl.constexpr = S if STEP_CHUNK else 1
    acc = tl.zeros([S, 32 * T, 8 * RT], dtype=tl.float32)
    r0, r1, r2, r3, r4, r5, r6, r7 = load_chunk(
        p_strips, strip, chunk, FMT, NCH, STRIPS, S, T, STEP_STRIP, STEP_CHUNK, ONCE
    )
    row = tl.arange(0, 32 * T)[None, :, None]
    multiplier = _multiplier(
        p_strips, strip + tl.arange(0, S)[:, None, None] * STEP_STRIP + row // 32, FMT, NCH, STRIPS
    )
    gdc_wait(PDL)
    gdc_launch(PDL)
    for n in range(COUNT - 1):
        n0, n1, n2, n3, n4, n5, n6, n7 = load_chunk(
            p_strips, strip, chunk + (n + 1) * JUMP, FMT, NCH, STRIPS, S, T, STEP_STRIP, STEP_CHUNK, ONCE
        )
        acc = _multiply(acc, r0, r1, r2, r3, r4, r5, r6, r7, p_x, rows, chunk + n * JUMP, p_grid, FMT, S, T, RT, NCH,
                        STEP_CHUNK, EXACT, levels)  # fmt: skip
        r0, r1, r2, r3, r4, r5, r6, r7 = n0, n1, n2, n3, n4, n5, n6, n7
    acc = _multiply(acc, r0, r1, r2, r3, r4, r5, r6, r7, p_x, rows, chunk + (COUNT - 1) * JUMP, p_grid, FMT, S, T, RT,
                    NCH, STEP_CHUNK, EXACT, levels)  # fmt: skip
    return acc * multiplier


@triton.jit
def held_products(p_strips, strip, chunk, p_x, rows, p_grid, FMT: tl.constexpr, S: tl.constexpr, RT: tl.constexpr,
                  NCH: tl.constexpr, STRIPS: tl.constexpr, COUNT: tl.constexpr, PDL: tl.constexpr,
                  levels=None, ONCE: tl.constexpr = False):  # fmt: skip
    """`strip_products` of S strips in fp16, one a warp, to the bit; the words of all COUNT chunks come before the wait.

    For few programs of few chunks: words fill a thread's registers, and no other program would hide its loads.
    """
    held = (load_chunk(p_strips, strip, chunk, FMT, NCH, STRIPS, S, 1, 1, 0, ONCE),)
    for n in tl.static_range(1, COUNT):
        held = held + (load_chunk(p_strips, strip, chunk + n, FMT, NCH, STRIPS, S, 1, 1, 0, ONCE),)  # noqa: RUF005
    multiplier = _multiplier(p_strips, strip + tl.arange(0, S)[:, None, None], FMT, NCH, STRIPS)
    gdc_wait(PDL)
    gdc_launch(PDL)
    acc = tl.zeros([S, 32, 8 * RT], dtype=tl.float32)
    for n in tl.static_range(COUNT):
        acc = _multiply(acc, *held[n], p_x, rows, chunk + n, p_grid, FMT, S, 1, RT, NCH, 0, False, levels)
    return acc * multiplier
