"""Device code: single weights out of raw ggml blocks, for tables of which a few rows are read.

BLOCK_BYTES, BLOCK_WEIGHTS and KIND say what a block is; KIND is `op.KINDS[type]`. Bytes are read one at a time, so a
table may start anywhere, in device memory or in pinned host memory.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, SIM109

import triton
import triton.language as tl

F32 = tl.constexpr(0)
F16 = tl.constexpr(1)
BF16 = tl.constexpr(2)
Q8_0 = tl.constexpr(3)
Q4_0 = tl.constexpr(4)
Q4_1 = tl.constexpr(5)
Q5_0 = tl.constexpr(6)
Q5_1 = tl.constexpr(7)
IQ4_NL = tl.constexpr(8)
Q2_0 = tl.constexpr(9)
Q4_K = tl.constexpr(10)
Q5_K = tl.constexpr(11)
Q6_K = tl.constexpr(12)
IQ4_XS = tl.constexpr(13)
Q3_K = tl.constexpr(14)
Q2_K = tl.constexpr(15)


@triton.jit
def byte_at(p_byte, mask):
    """A byte as int32."""
    return tl.load(p_byte, mask=mask, other=0).to(tl.int32)


@triton.jit
def half_at(p_byte, mask):
    """The IEEE half at a byte address, as float32."""
    word = byte_at(p_byte, mask) | (byte_at(p_byte + 1, mask) << 8)
    return word.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def signed(byte):
    """An int32 that holds an unsigned byte, as the signed byte."""
    return byte - ((byte & 128) << 1)


@triton.jit
def iq4_level(nibble):
    """-127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113, from four words of bytes (level + 128)."""
    shift = (nibble & 3) * 8
    low = tl.where(nibble < 4, 0x3F2D1801, 0x766A5D4F)
    high = tl.where(nibble < 12, 0x26190D01, 0x71594535)
    # The upper levels are stored without the 128, so that the words stay positive.
    word = tl.where(nibble < 8, low, high)
    level = (word >> shift) & 255
    return (tl.where(nibble < 8, level - 128, level)).to(tl.float32)


@triton.jit
def six_bits(p_scales, group, mask):
    """Scale and minimum number `group` of the twelve bytes of Q4_K and Q5_K."""
    low = byte_at(p_scales + group % 4, mask)
    middle = byte_at(p_scales + 4 + group % 4, mask)
    high = byte_at(p_scales + 8 + group % 4, mask)
    scale = tl.where(group < 4, low & 63, (high & 15) | ((low >> 6) << 4))
    minimum = tl.where(group < 4, middle & 63, (high >> 4) | ((middle >> 6) << 4))
    return scale.to(tl.float32), minimum.to(tl.float32)


@triton.jit
def decode(p_row, k, mask, KIND: tl.constexpr, BLOCK_WEIGHTS: tl.constexpr, BLOCK_BYTES: tl.constexpr):
    """float32 weights k of the row of blocks that starts at byte address p_row. Rounds as ggml does."""
    p_block = p_row + (k // BLOCK_WEIGHTS) * BLOCK_BYTES
    j = k % BLOCK_WEIGHTS
    if KIND == F32:
        word = byte_at(p_block, mask).to(tl.uint32) | (byte_at(p_block + 1, mask).to(tl.uint32) << 8)
        word = word | (byte_at(p_block + 2, mask).to(tl.uint32) << 16)
        word = word | (byte_at(p_block + 3, mask).to(tl.uint32) << 24)
        return word.to(tl.float32, bitcast=True)
    if KIND == F16:
        return half_at(p_block, mask)
    if KIND == BF16:
        word = (byte_at(p_block, mask) | (byte_at(p_block + 1, mask) << 8)).to(tl.uint32) << 16
        return word.to(tl.float32, bitcast=True)
    if KIND == Q8_0:
        return half_at(p_block, mask) * signed(byte_at(p_block + 2 + j, mask)).to(tl.float32)
    if KIND == Q2_0:
        code = (byte_at(p_block + 2 + j // 4, mask) >> (2 * (j % 4))) & 3
        return half_at(p_block, mask) * (code - 1).to(tl.float32)
    if (KIND == Q4_0) or (KIND == IQ4_NL):
        nibble = (byte_at(p_block + 2 + j % 16, mask) >> (4 * (j // 16))) & 15
        if KIND == IQ4_NL:
            return half_at(p_block, mask) * iq4_level(nibble)
        return half_at(p_block, mask) * (nibble - 8).to(tl.float32)
    if KIND == Q4_1:
        nibble = (byte_at(p_block + 4 + j % 16, mask) >> (4 * (j // 16))) & 15
        return half_at(p_block, mask) * nibble.to(tl.float32) + half_at(p_block + 2, mask)
    if (KIND == Q5_0) or (KIND == Q5_1):
        HIGH: tl.constexpr = 2 if KIND == Q5_0 else 4
        nibble = (byte_at(p_block + HIGH + 4 + j % 16, mask) >> (4 * (j // 16))) & 15
        code = nibble | (((byte_at(p_block + HIGH + j // 8, mask) >> (j % 8)) & 1) << 4)
        if KIND == Q5_0:
            return half_at(p_block, mask) * (code - 16).to(tl.float32)
        return half_at(p_block, mask) * code.to(tl.float32) + half_at(p_block + 2, mask)
    if (KIND == Q4_K) or (KIND == Q5_K):
        CODES: tl.constexpr = 16 if KIND == Q4_K else 48
        group = j // 32
        code = (byte_at(p_block + CODES + (j // 64) * 32 + j % 32, mask) >> (4 * (group % 2))) & 15
        if KIND == Q5_K:
            code = code | (((byte_at(p_block + 16 + j % 32, mask) >> group) & 1) << 4)
        scale, minimum = six_bits(p_block + 4, group, mask)
        return scale * half_at(p_block, mask) * code.to(tl.float32) - minimum * half_at(p_block + 2, mask)
    if KIND == Q6_K:
        nibble = (byte_at(p_block + (j // 128) * 64 + j % 64, mask) >> (4 * ((j % 128) // 64))) & 15
        high = (byte_at(p_block + 128 + (j // 128) * 32 + j % 32, mask) >> (2 * ((j % 128) // 32))) & 3
        scale = half_at(p_block + 208, mask) * signed(byte_at(p_block + 192 + j // 16, mask)).to(tl.float32)
        return scale * ((nibble | (high << 4)) - 32).to(tl.float32)
    if KIND == IQ4_XS:
        group = j // 32
        low = (byte_at(p_block + 4 + group // 2, mask) >> (4 * (group % 2))) & 15
        high = (byte_at(p_block + 2 + group // 4, mask) >> (2 * (group % 4))) & 3
        nibble = (byte_at(p_block + 8 + group * 16 + j % 16, mask) >> (4 * ((j % 32) // 16))) & 15
        return half_at(p_block, mask) * ((low | (high << 4)) - 32).to(tl.float32) * iq4_level(nibble)
    part = (j % 128) // 32
    group = j // 16
    if KIND == Q3_K:
        low = (byte_at(p_block + 96 + group % 8, mask) >> (4 * (group // 8))) & 15
        high = (byte_at(p_block + 104 + group % 4, mask) >> (2 * (group // 4))) & 3
        code = (byte_at(p_block + 32 + (j // 128) * 32 + j % 32, mask) >> (2 * part)) & 3
        code = code | (((byte_at(p_block + j % 32, mask) >> (j // 32)) & 1) << 2)
        scale = half_at(p_block + 108, mask) * ((low | (high << 4)) - 32).to(tl.float32)
        return scale * (code - 4).to(tl.float32)
    packed = byte_at(p_block + group, mask)
    code = (byte_at(p_block + 16 + (j // 128) * 32 + j % 32, mask) >> (2 * part)) & 3
    scale = half_at(p_block + 80, mask) * (packed & 15).to(tl.float32)
    return scale * code.to(tl.float32) - half_at(p_block + 82, mask) * (packed >> 4).to(tl.float32)
