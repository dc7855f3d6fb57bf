"""Device code: loads the words of tiles, no arithmetic, so that they can be fetched ahead."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl


@triton.jit
def _word(p, ONCE: tl.constexpr):
    return tl.load(p, eviction_policy="evict_first" if ONCE else "")


@triton.jit
def load_chunk(p_strips, strip, chunk, FMT: tl.constexpr, NCH: tl.constexpr, STRIPS: tl.constexpr, S: tl.constexpr,
               T: tl.constexpr, STEP_STRIP: tl.constexpr, STEP_CHUNK: tl.constexpr,
               ONCE: tl.constexpr = False):  # fmt: skip
    """Words of tile (strip + STEP_STRIP * s + t, chunk + STEP_CHUNK * s); strips beyond the last read the last.

    ONCE: nothing reads the words again soon, so caches give up their lines first and keep what is shared.
    """
    BITS: tl.constexpr = FMT & 63
    CODEBOOK: tl.constexpr = (FMT >> 23) & 1
    CW: tl.constexpr = 416 if CODEBOOK else BITS * 128
    SW: tl.constexpr = scale_words(FMT)
    b = tl.arange(0, 4)[:, None, None, None, None, None]
    a = tl.arange(0, 8)[None, :, None, None, None, None]
    s = tl.arange(0, S)[None, None, :, None, None, None]
    t = tl.arange(0, T)[None, None, None, :, None, None]
    qg = tl.arange(0, 4)[None, None, None, None, :, None]
    q = tl.arange(0, 2)[None, None, None, None, :, None]
    m = tl.arange(0, 4)[None, None, None, None, None, :]
    at = tl.minimum(strip + s * STEP_STRIP + t, STRIPS - 1) * (NCH * (CW + SW) + 4)
    tile = at + (chunk + s * STEP_CHUNK) * CW
    lane = a * 4 + b
    b5 = tl.arange(0, 4)[:, None, None, None, None]
    a5 = tl.arange(0, 8)[None, :, None, None, None]
    s5 = tl.arange(0, S)[None, None, :, None, None]
    t5 = tl.arange(0, T)[None, None, None, :, None]
    qg5 = tl.arange(0, 4)[None, None, None, None, :]
    q5 = tl.arange(0, 2)[None, None, None, None, :]
    at5 = tl.minimum(strip + s5 * STEP_STRIP + t5, STRIPS - 1) * (NCH * (CW + SW) + 4)
    tile5 = at5 + (chunk + s5 * STEP_CHUNK) * CW
    four = tile + qg * 128 + lane * 4 + m
    two = tile + q * 128 + lane * 4 + m
    one = tile5 + (a5 * 4 + b5) * 4 + qg5
    # Codes
    if CODEBOOK:
        r0 = _word(p_strips + two, ONCE)
        r1 = _word(p_strips + one + 256, ONCE)
        r2 = _word(p_strips + 384 + tile5 + a5 * 4 + b5 + 0 * qg5, ONCE)
        r3 = r2
    elif BITS >= 16:
        r0 = _word(p_strips + four, ONCE)
        r1 = _word(p_strips + four + 512, ONCE)
        r2 = _word(p_strips + four + 1024, ONCE)
        r3 = _word(p_strips + four + 1536, ONCE)
    elif BITS == 8:
        r0 = _word(p_strips + four, ONCE)
        r1 = _word(p_strips + four + 512, ONCE)
        r2 = r0
        r3 = r0
    else:
        r0 = _word(p_strips + (two if BITS < 4 else four), ONCE)
        if BITS == 3:
            r1 = _word(p_strips + one + 256, ONCE)
        elif BITS == 5:
            r1 = _word(p_strips + one + 512, ONCE)
        elif BITS == 6:
            r1 = _word(p_strips + two + 512, ONCE)
        else:
            r1 = r0
        r2 = r0
        r3 = r0
    # Scales, or the other half of float32
    sc = at5 + NCH * CW + (chunk + s5 * STEP_CHUNK) * SW + b5 * 0
    row = sc + a5 * 4 + qg5
    G16: tl.constexpr = (FMT >> 9) & 1
    STEP: tl.constexpr = (FMT >> 10) & 3
    LOW: tl.constexpr = (FMT >> 13) & 1
    if BITS == 32:
        r4 = _word(p_strips + four + 2048, ONCE)
        r5 = _word(p_strips + four + 2560, ONCE)
        r6 = _word(p_strips + four + 3072, ONCE)
        r7 = _word(p_strips + four + 3584, ONCE)
    elif BITS == 16:
        r4 = r0
        r5 = r0
        r6 = r0
        r7 = r0
    elif STEP == 0:
        GROUPS: tl.constexpr = 4 if G16 else 2
        direct = sc + (a5 * GROUPS + b5 * GROUPS // 4) * 4 + qg5
        r4 = _word(p_strips + direct, ONCE)
        r5 = _word(p_strips + direct + 32 * GROUPS, ONCE) if LOW else r4
        r6 = r4
        r7 = r4
    else:
        SIZE: tl.constexpr = 64 if (STEP == 2 and G16) else 32
        steps = (sc + a5 * 8 + (b5 // 2) * 4 + qg5) if (STEP == 2 and G16) else row
        r4 = _word(p_strips + steps, ONCE)
        if LOW:
            r5 = _word(p_strips + steps + SIZE, ONCE)
            r6 = _word(p_strips + row + 2 * SIZE, ONCE)
        elif STEP == 1 and not G16:
            r5 = r4
            r6 = r4
        else:
            r5 = r4
            r6 = _word(p_strips + SIZE + sc + a5 * 2 + q5, ONCE)
        r7 = r4
    return r0, r1, r2, r3, r4, r5, r6, r7


@triton.constexpr_function
def scale_words(fmt):
    """`PlaneFormat.scale_words` of a packed format."""
    bits, g16, step, low = fmt & 63, fmt >> 9 & 1, fmt >> 10 & 3, fmt >> 13 & 1
    if bits >= 16:
        return 0
    if step == 0:
        return (1 + low) * (128 if g16 else 64)
    if step == 1 and not g16:
        return 32
    return (1 + low) * ((64 if step == 2 and g16 else 32) + 16)
