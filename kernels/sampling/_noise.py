"""Device code of the sampler's noise: the same hash, keys and float64 logarithms as `kernels.sampling.noise`."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

WEYL64 = tl.constexpr(0x9E3779B97F4A7C15)
FIRST64 = tl.constexpr(0xBF58476D1CE4E5B9)
SECOND64 = tl.constexpr(0x94D049BB133111EB)
WEYL32 = tl.constexpr(0x9E3779B1)
FIRST32 = tl.constexpr(0x85EBCA6B)
SECOND32 = tl.constexpr(0xC2B2AE35)


@triton.jit
def mix64(value):
    value = (value ^ (value >> 30)) * FIRST64
    value = (value ^ (value >> 27)) * SECOND64
    return value ^ (value >> 31)


@triton.jit
def mix32(value):
    value = (value ^ (value >> 16)) * FIRST32
    value = (value ^ (value >> 13)) * SECOND32
    return value ^ (value >> 16)


@triton.jit
def gumbel(seed, position, tokens):
    """float64 noise of tokens; seed is the first of the two mixings (`first_mix`), int64."""
    spread = position.to(tl.uint64) * WEYL64
    key = mix64(seed.to(tl.uint64, bitcast=True) ^ spread)
    low = (key & 0xFFFFFFFF).to(tl.uint32)
    high = (key >> 32).to(tl.uint32)
    hashed = mix32(mix32(tokens.to(tl.uint32) * WEYL32 + low) ^ high)
    signed = hashed.to(tl.int32, bitcast=True).to(tl.float64)
    uniform = (signed + 2147483648.5) * 2.3283064365386963e-10
    return -tl.log(-tl.log(uniform))
