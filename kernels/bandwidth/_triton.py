"""A sum over memory at an address, which may be pinned RAM: the simplest kernel that must read every byte."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl


@triton.jit
def sum_words(p_words, p_out, words, PER_PROGRAM: tl.constexpr, BLOCK: tl.constexpr):
    """out[i] = sum of this program's int32 words, wrapping."""
    i_program = tl.program_id(0).to(tl.int64)
    o_block = tl.arange(0, BLOCK)
    b_sum = tl.zeros([BLOCK], tl.int32)
    for step in range(PER_PROGRAM):
        o_word = (i_program * PER_PROGRAM + step) * BLOCK + o_block
        b_sum += tl.load(p_words + o_word, mask=o_word < words, other=0)
    tl.store(p_out + i_program, tl.sum(b_sum.to(tl.int64)).to(tl.int32))
