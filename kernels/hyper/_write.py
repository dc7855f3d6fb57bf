"""Device code of a write alone: a block's output goes to the streams, and nothing is read."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels._terms import sum_terms
from kernels.device import gdc_launch, gdc_wait
from kernels.hyper._triton import inject_gate


@triton.jit
def write(
    p_x,
    p_part,
    p_gate,
    o_part_term,
    o_part_row,
    TERMS: tl.constexpr,
    STREAMS: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (streams, rows): x += gate * sum of the block's terms, in the order and rounding of `write_norm`."""
    i_stream = tl.program_id(0)
    i_row = tl.program_id(1)
    b_hidden = tl.arange(0, BLOCK)[None, :]
    m_hidden = b_hidden < HIDDEN
    p_stream = p_x + (i_row.to(tl.int64) * STREAMS + i_stream) * HIDDEN + b_hidden
    x = tl.load(p_stream, mask=m_hidden, other=0.0)
    gate = inject_gate(p_gate, i_row, i_stream, STREAMS)
    gdc_wait(PDL)
    gdc_launch(PDL)
    block = sum_terms(p_part, i_row * o_part_row + b_hidden, o_part_term, m_hidden, TERMS)
    tl.store(p_stream, tl.fma(block, tl.broadcast_to(gate, block.shape), x), mask=m_hidden)
