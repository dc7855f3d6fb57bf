"""Device code of a draft layer's entry over many rows: norms of tokens and streams in natural order."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels._many import narrow
from kernels.embedding._decode import decode


@triton.jit
def entry_norm(
    p_table, p_token, p_wide, p_token_norm, p_state_norm, p_token_out, p_state_out, eps,
    ROW_BYTES: tl.constexpr, STREAMS: tl.constexpr, STREAMS_BLOCK: tl.constexpr, HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr, KIND: tl.constexpr, BLOCK_WEIGHTS: tl.constexpr, BLOCK_BYTES: tl.constexpr,
    GROUPED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Grid (rows): the row's normed token and its normed streams. GROUPED: every stream has its own norm."""
    i_row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    m_k = k < HIDDEN
    token = tl.load(p_token + i_row).to(tl.int64)
    value = tl.where(m_k, decode(p_table + token * ROW_BYTES, k, m_k, KIND, BLOCK_WEIGHTS, BLOCK_BYTES), 0.0)
    value = value * tl.rsqrt(tl.sum(value * value, axis=0) / HIDDEN + eps)
    value = value * tl.load(p_token_norm + k, mask=m_k, other=0.0)
    tl.store(p_token_out + i_row * HIDDEN + k, narrow(value, EXACT), mask=m_k)
    b_stream = tl.arange(0, STREAMS_BLOCK)
    o_wide = b_stream[:, None] * HIDDEN + k[None, :]
    m_wide = (b_stream < STREAMS)[:, None] & m_k[None, :]
    x = tl.load(p_wide + i_row * (STREAMS * HIDDEN) + o_wide, mask=m_wide, other=0.0)
    mean = tl.sum(x * x, axis=1) / HIDDEN
    if GROUPED == 0:
        mean = mean * 0.0 + tl.sum(mean, axis=0) / STREAMS
    x = x * tl.rsqrt(mean + eps)[:, None] * tl.load(p_state_norm + o_wide, mask=m_wide, other=0.0)
    tl.store(p_state_out + i_row * (STREAMS * HIDDEN) + o_wide, narrow(x, EXACT), mask=m_wide)
