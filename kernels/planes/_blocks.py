"""Device code: what a block of each ggml type says of one of its weights or groups, read byte by byte.

p points at blocks (uint8), `inside` masks them: what lies outside reads as zero bytes. TYPE is the ggml type's name.
p_grid is an int32 table of eight nibbles, see `kernels.planes.fast`. The numbers are those of `fields.Fields`.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl


@triton.jit
def byte(p, at, inside):
    """The byte at `at` of each block, int32."""
    return tl.load(p + at, mask=inside, other=0).to(tl.int32)


@triton.jit
def word16(p, at, inside):
    """Two bytes, int32; blocks lie at even addresses only, so never as one load."""
    return byte(p, at, inside) | (byte(p, at + 1, inside) << 8)


@triton.jit
def _half(bits):
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _even_signs(index):
    """Eight sign bits of a 7-bit index: the eighth makes their number even."""
    odd = index ^ (index >> 4)
    odd = odd ^ (odd >> 2)
    odd = (odd ^ (odd >> 1)) & 1
    return index | (odd << 7)


@triton.jit
def scale_bits(p, inside, TYPE: tl.constexpr):
    """The block's scale as the 16 bits of an fp16."""
    if TYPE == "Q6_K":
        bits = word16(p, 208, inside)
    elif TYPE == "Q3_K":
        bits = word16(p, 108, inside)
    elif TYPE == "Q2_K":
        bits = word16(p, 80, inside)
    elif TYPE == "IQ1_M":
        bits = byte(p, 49, inside) >> 4
        bits |= byte(p, 51, inside) & 0xF0
        bits |= (byte(p, 53, inside) >> 4) << 8
        bits |= (byte(p, 55, inside) >> 4) << 12
    else:
        bits = word16(p, 0, inside)
    return bits


@triton.jit
def low_bits(p, inside, TYPE: tl.constexpr):
    """The same of the block's offset, for types that have one."""
    return word16(p, 82 if TYPE == "Q2_K" else 2, inside)


@triton.jit
def scale(p, inside, TYPE: tl.constexpr):
    """d of the fields, float32."""
    d = _half(scale_bits(p, inside, TYPE))
    if TYPE == "IQ3_S":
        d = d * 2.0
    elif TYPE == "IQ3_XXS":
        d = d * 0.25
    elif TYPE == "IQ2_S" or TYPE == "IQ2_XS" or TYPE == "IQ2_XXS" or TYPE == "IQ1_S" or TYPE == "IQ1_M":
        d = d * 0.125
    return d


@triton.jit
def low(p, inside, TYPE: tl.constexpr):
    """The offset of the fields, float32."""
    bits = low_bits(p, inside, TYPE)
    if TYPE == "Q4_K" or TYPE == "Q5_K" or TYPE == "Q2_K":
        bits = bits ^ 0x8000  # a minus that also turns the sign of 0
    return _half(bits)


@triton.jit
def step(p, g, inside, TYPE: tl.constexpr):
    """The integer scale of group g of a block, int32 without a bias."""
    if TYPE == "Q4_K" or TYPE == "Q5_K":
        first = byte(p, 4 + g % 4, inside)
        value = tl.where(g < 4, first & 63, (byte(p, 12 + g % 4, inside) & 15) | ((first >> 2) & 48))
    elif TYPE == "Q6_K":
        value = byte(p, 192 + g, inside)
        value = value - ((value & 128) << 1)
    elif TYPE == "Q3_K":
        value = (byte(p, 96 + g % 8, inside) >> (g // 8 * 4)) & 15
        value = (value | (((byte(p, 104 + g % 4, inside) >> (g // 4 * 2)) & 3) << 4)) - 32
    elif TYPE == "Q2_K":
        value = byte(p, g, inside) & 15
    elif TYPE == "IQ4_XS":
        value = (byte(p, 4 + g // 2, inside) >> (g % 2 * 4)) & 15
        value = (value | (((byte(p, 2 + g // 4, inside) >> (g % 4 * 2)) & 3) << 4)) - 32
    elif TYPE == "IQ3_S":
        value = (byte(p, 106 + g // 2, inside) >> (g % 2 * 4)) & 15
    elif TYPE == "IQ3_XXS":
        value = byte(p, 69 + 4 * g, inside) >> 4
    elif TYPE == "IQ2_XXS":
        value = byte(p, 9 + 8 * g, inside) >> 4
    elif TYPE == "IQ2_XS":
        value = (byte(p, 66 + g // 2, inside) >> (g % 2 * 4)) & 15
    elif TYPE == "IQ2_S":
        value = (byte(p, 74 + g // 2, inside) >> (g % 2 * 4)) & 15
    elif TYPE == "IQ1_S":
        value = (byte(p, 35 + 2 * g, inside) >> 4) & 7
    else:
        value = (word16(p, 48 + g // 4 * 2, inside) >> (g % 4 * 3)) & 7
    return value


@triton.jit
def low_step(p, g, inside, TYPE: tl.constexpr):
    """The integer of group g's offset."""
    if TYPE == "Q2_K":
        value = byte(p, g, inside) >> 4
    else:
        second = byte(p, 8 + g % 4, inside)
        value = tl.where(g < 4, second & 63, (byte(p, 12 + g % 4, inside) >> 4) | ((second >> 2) & 48))
    return value


@triton.jit
def _two_bits(p, at, j, inside):
    """Of two halves of 128 weights, 32 bytes each: the field j // 32 % 4 of a byte."""
    return (byte(p, at + j // 128 * 32 + j % 32, inside) >> (j // 32 % 4 * 2)) & 3


@triton.jit
def _nibble(p, at, j, inside, RUN: tl.constexpr):
    """Low nibbles of RUN bytes, then the high ones."""
    return (byte(p, at + j // (2 * RUN) * RUN + j % RUN, inside) >> (j // RUN % 2 * 4)) & 15


@triton.jit
def code(p, j, inside, p_grid, TYPE: tl.constexpr):
    """The code of weight j of a block, int32."""
    if TYPE == "Q8_0":
        value = byte(p, 2 + j, inside) ^ 128
    elif TYPE == "Q4_0" or TYPE == "IQ4_NL":
        value = _nibble(p, 2, j, inside, 16)
    elif TYPE == "Q4_1":
        value = _nibble(p, 4, j, inside, 16)
    elif TYPE == "Q5_0":
        value = _nibble(p, 6, j, inside, 16) | (((byte(p, 2 + j // 8, inside) >> (j % 8)) & 1) << 4)
    elif TYPE == "Q5_1":
        value = _nibble(p, 8, j, inside, 16) | (((byte(p, 4 + j // 8, inside) >> (j % 8)) & 1) << 4)
    elif TYPE == "Q2_0":
        value = (byte(p, 2 + j // 4, inside) >> (j % 4 * 2)) & 3
    elif TYPE == "Q4_K":
        value = _nibble(p, 16, j, inside, 32)
    elif TYPE == "Q5_K":
        value = _nibble(p, 48, j, inside, 32) | (((byte(p, 16 + j % 32, inside) >> (j // 32)) & 1) << 4)
    elif TYPE == "Q6_K":
        value = _nibble(p, 0, j, inside, 64) | (_two_bits(p, 128, j, inside) << 4)
    elif TYPE == "Q3_K":
        value = _two_bits(p, 32, j, inside) | (((byte(p, j % 32, inside) >> (j // 32)) & 1) << 2)
    elif TYPE == "Q2_K":
        value = _two_bits(p, 16, j, inside)
    elif TYPE == "IQ4_XS":
        value = _nibble(p, 8, j, inside, 16)
    elif TYPE == "IQ3_S":
        # 8 + level with all four bits turned is 7 - level.
        index = byte(p, 2 + j // 4, inside) | (((byte(p, 66 + j // 32, inside) >> (j // 4 % 8)) & 1) << 8)
        level = (tl.load(p_grid + index) >> (j % 4 * 4)) & 15
        value = level ^ (((byte(p, 74 + j // 8, inside) >> (j % 8)) & 1) * 15)
    elif TYPE == "IQ3_XXS":
        level = (tl.load(p_grid + byte(p, 2 + j // 4, inside)) >> (j % 4 * 4)) & 15
        signs = _even_signs(_seven(p, 66 + j // 32 * 4, j // 8 % 4, inside))
        value = level ^ (((signs >> (j % 8)) & 1) * 15)
    elif TYPE == "IQ2_XXS":
        at = 2 + j // 32 * 8
        level = _of_eight(p_grid, byte(p, at + j // 8 % 4, inside), j)
        signs = _even_signs(_seven(p, at + 4, j // 8 % 4, inside))
        value = level | (((signs >> (j % 8)) & 1) << 2)
    elif TYPE == "IQ2_XS":
        both = word16(p, 2 + j // 8 * 2, inside)
        value = _of_eight(p_grid, both & 511, j) | (((_even_signs(both >> 9) >> (j % 8)) & 1) << 2)
    elif TYPE == "IQ2_S":
        high = (byte(p, 66 + j // 32, inside) >> (j // 8 % 4 * 2)) & 3
        level = _of_eight(p_grid, byte(p, 2 + j // 8, inside) | (high << 8), j)
        value = level | (((byte(p, 34 + j // 8, inside) >> (j % 8)) & 1) << 2)
    elif TYPE == "IQ1_S":
        both = word16(p, 34 + j // 32 * 2, inside)
        level = _of_eight(p_grid, byte(p, 2 + j // 8, inside) | (((both >> (j // 8 % 4 * 3)) & 7) << 8), j)
        value = level | ((1 - (both >> 15)) << 2)
    else:
        nibble = (byte(p, 32 + j // 16, inside) >> (j // 8 % 2 * 4)) & 15
        level = _of_eight(p_grid, byte(p, j // 8, inside) | ((nibble & 7) << 8), j)
        value = level | ((1 - (nibble >> 3)) << 2)
    return value


@triton.jit
def _of_eight(p_grid, index, j):
    return (tl.load(p_grid + index) >> (j % 8 * 4)) & 15


@triton.jit
def _seven(p, at, number, inside):
    """Field `number` of four times seven bits of a 32-bit word."""
    first = number * 7
    both = byte(p, at + first // 8, inside) | (byte(p, at + tl.minimum(first // 8 + 1, 3), inside) << 8)
    return (both >> (first % 8)) & 127
