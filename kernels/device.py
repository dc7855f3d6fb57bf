"""Device-side helpers shared by the Triton kernels: packed half arithmetic, operand order, dependent launch.

An operand row is what a quantised product reads. With EXACT 0 it is fp16, its inputs permuted inside every 128 by
`perm_k` so that a lane of mma.m16n8k16 finds its words side by side; with EXACT 1 it is float32 in natural order.
Its length is the number of inputs rounded up to 128, and what lies beyond the inputs is zero.

The interpreter has no inline assembly, so what needs it is written twice.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202

import os

import triton
import triton.language as tl

INTERPRET = os.environ.get("TRITON_INTERPRET", "0") == "1"
HALF_MAX = tl.constexpr(65504.0)

if INTERPRET:

    @triton.jit
    def fma2(a, b, c):
        """a * b + c on both halves of uint32 words, one rounding."""
        low = _half(a).to(tl.float32) * _half(b).to(tl.float32) + _half(c).to(tl.float32)
        high = _half(a >> 16).to(tl.float32) * _half(b >> 16).to(tl.float32) + _half(c >> 16).to(tl.float32)
        return _bits(low.to(tl.float16)) | (_bits(high.to(tl.float16)) << 16)

    @triton.jit
    def prmt(a, b, selector):
        """Four bytes picked from the eight of (a, b) by the selector's low four nibbles (3 bits each)."""
        both = a.to(tl.uint64) | (b.to(tl.uint64) << 32)
        out = (a ^ a) ^ (selector ^ selector)
        for j in tl.static_range(4):
            at = ((selector >> (4 * j)) & 7).to(tl.uint64) * 8
            out = out | (((both >> at) & 255).to(tl.uint32) << (8 * j))
        return out

    @triton.jit
    def dot(a, b, acc, EXACT: tl.constexpr):
        """acc + a . b over [batch, m, k] x [batch, k, n]; the same order of sums for every column."""
        return acc + tl.sum(a.to(tl.float32)[:, :, :, None] * b.to(tl.float32)[:, None, :, :], axis=2)

else:

    @triton.jit
    def fma2(a, b, c):
        """a * b + c on both halves of uint32 words, one rounding."""
        return tl.inline_asm_elementwise(
            "fma.rn.f16x2 $0, $1, $2, $3;", "=r,r,r,r", [a, b, c], dtype=tl.uint32, is_pure=True, pack=1
        )

    @triton.jit
    def prmt(a, b, selector):
        """Four bytes picked from the eight of (a, b) by the selector's low four nibbles (3 bits each)."""
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, selector], dtype=tl.uint32, is_pure=True, pack=1
        )

    @triton.jit
    def dot(a, b, acc, EXACT: tl.constexpr):
        """acc + a . b over [batch, m, k] x [batch, k, n]; the same order of sums for every column."""
        return tl.dot(a, b, acc, input_precision="ieee" if EXACT else "tf32")


@triton.jit
def _half(word):
    return (word & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True)


@triton.jit
def _bits(value):
    return value.to(tl.uint16, bitcast=True).to(tl.uint32)


@triton.jit
def u32c(like, VALUE: tl.constexpr):
    """A uint32 constant of the shape of `like`."""
    return (like ^ like) | VALUE


@triton.jit
def mul2(a, b):
    """a * b on both halves of uint32 words."""
    return fma2(a, b, u32c(a, 0x80008000))


@triton.jit
def pair(words):
    """uint32 words [...] to the fp16 values in their halves [..., 2], low half first."""
    return tl.join(_half(words), _half(words >> 16))


@triton.jit
def perm_k(k):
    """Place of input k in a permuted fp16 row: k = 64 mj + 16 b + 8 mr + 4 h + i of 128 goes to (i, b, mr, mj, h)."""
    inner = k % 128
    quad = inner // 4
    return (
        (k // 128) * 128
        + (inner % 4) * 32
        + ((quad // 4) % 4) * 8
        + ((quad // 2) % 2) * 4
        + (quad // 16) * 2
        + quad % 2
    )


@triton.jit
def store_operand(p_row, k, value, mask, EXACT: tl.constexpr):
    """Stores float32 values as inputs k of the operand row that starts at p_row (fp16, or float32 when EXACT).

    fp16 saturates at its largest number, so that an outlier stays finite; NaN stays NaN. k and value broadcast.
    """
    if EXACT:
        tl.store(p_row + k, value, mask=mask)
    else:
        value = tl.where(value > HALF_MAX, HALF_MAX, value)
        value = tl.where(value < -HALF_MAX, -HALF_MAX, value)
        tl.store(p_row + perm_k(k), value.to(tl.float16), mask=mask)


@triton.jit
def load_operand(p_row, k, mask, EXACT: tl.constexpr):
    """float32 values of inputs k of an operand row."""
    at = k if EXACT else perm_k(k)
    return tl.load(p_row + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def gdc_wait(PDL: tl.constexpr):
    """Waits until the launches before this one are done and visible. Nothing they wrote may be read earlier."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def bring(p, PDL: tl.constexpr):
    """Asks the level 2 cache for the lines of these addresses; before a wait, so only where a launch overlaps."""
    if PDL:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [p], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def gdc_launch(PDL: tl.constexpr):
    """Lets the next launch start; it must itself wait before it reads what this one writes."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def gdc_sync(PDL: tl.constexpr):
    """`gdc_wait`, then `gdc_launch`: for kernels without weights to load ahead."""
    gdc_wait(PDL)
    gdc_launch(PDL)
