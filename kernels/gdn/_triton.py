"""Device code of a Gated DeltaNet decode window: prepare, recur, finish."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, SIM102

import triton
import triton.language as tl

from kernels._terms import limit, sum_terms
from kernels.device import gdc_launch, gdc_wait, store_operand


@triton.jit
def softplus(x):
    """log(1 + exp(x)), accurate at both ends: u = 1 + e rounds, and e / (u - 1) repairs what it lost."""
    small = tl.exp(-tl.abs(x))
    rounded = 1.0 + small
    lost = rounded == 1.0
    ratio = small / tl.where(lost, 1.0, rounded - 1.0)
    return tl.maximum(x, 0.0) + tl.where(lost, small, tl.log(rounded) * ratio)


@triton.jit
def prepare(
    p_qkv,
    p_alpha,
    p_beta,
    p_conv,
    p_rate,
    p_bias,
    p_ring,
    p_row_slot,
    p_row_position,
    p_row_span,
    p_span_first,
    p_rows_used,
    p_query,
    p_key,
    p_value,
    p_decay,
    p_strength,
    o_qkv_term,
    o_qkv_row,
    o_alpha_term,
    o_alpha_row,
    o_beta_term,
    o_beta_row,
    scale,
    QKV_TERMS: tl.constexpr,
    ALPHA_TERMS: tl.constexpr,
    BETA_TERMS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    TAPS: tl.constexpr,
    RING: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows, 2 key heads + heads): convolution, silu, unit queries and keys, decay and strength of one head.

    What came before the window lies in the ring; it is old enough to be read before the dependency wait. Taps go from
    the oldest to the newest, so the sum is the same whether a row is read from the ring or from the window.
    """
    CHANNELS: tl.constexpr = (2 * KEY_HEADS + HEADS) * DIM
    i_row = tl.program_id(0)
    i_head = tl.program_id(1)
    live = i_row < tl.load(p_rows_used)
    slot = tl.load(p_row_slot + i_row).to(tl.int64)
    position = tl.load(p_row_position + i_row)
    span = tl.load(p_row_span + i_row, mask=live, other=0)
    first = tl.load(p_span_first + span)
    b_dim = tl.arange(0, BLOCK)
    m_dim = b_dim < limit(DIM, live)
    o_channel = i_head * DIM + b_dim
    signal = tl.zeros([BLOCK], dtype=tl.float32)
    for i in tl.static_range(TAPS):
        back = TAPS - 1 - i
        m_old = b_dim < limit(DIM, live & (i_row - back < first) & (position >= back))
        o_ring = (slot * RING + (position - back + RING) % RING) * CHANNELS
        old = tl.load(p_ring + o_ring + o_channel, mask=m_old, other=0.0)
        signal = tl.fma(old, tl.load(p_conv + i * CHANNELS + o_channel, mask=m_dim, other=0.0), signal)
    gdc_wait(PDL)
    gdc_launch(PDL)
    for i in tl.static_range(TAPS):
        back = TAPS - 1 - i
        m_new = b_dim < limit(DIM, live & (i_row - back >= first))
        new = sum_terms(p_qkv, (i_row - back) * o_qkv_row + o_channel, o_qkv_term, m_new, QKV_TERMS)
        signal = tl.fma(new, tl.load(p_conv + i * CHANNELS + o_channel, mask=m_dim, other=0.0), signal)
    signal = signal / (1.0 + tl.exp(-signal))
    if i_head < 2 * KEY_HEADS:
        unit = signal * tl.rsqrt(tl.sum(signal * signal, axis=0) + 1e-6)
        if i_head < KEY_HEADS:
            tl.store(p_query + (i_row * KEY_HEADS + i_head) * DIM + b_dim, unit * scale, mask=m_dim)
        else:
            tl.store(p_key + (i_row * KEY_HEADS + i_head - KEY_HEADS) * DIM + b_dim, unit, mask=m_dim)
    else:
        head = i_head - 2 * KEY_HEADS
        o_head = i_row * HEADS + head
        tl.store(p_value + o_head * DIM + b_dim, signal, mask=m_dim)
        alpha = sum_terms(p_alpha, i_row * o_alpha_row + head, o_alpha_term, live, ALPHA_TERMS)
        beta = sum_terms(p_beta, i_row * o_beta_row + head, o_beta_term, live, BETA_TERMS)
        decay = softplus(alpha + tl.load(p_bias + head)) * tl.load(p_rate + head)
        tl.store(p_decay + o_head, decay, mask=live)
        tl.store(p_strength + o_head, 1.0 / (1.0 + tl.exp(-beta)), mask=live)


@triton.jit
def delta_step(state, key, value, decay, strength):
    """One token of the delta rule on [keys, values]; the fma is spelled out, so that replayed rows repeat every bit."""
    state = state * tl.exp(decay)
    wide = tl.broadcast_to(key[:, None], state.shape)
    read = tl.sum(state * wide, axis=0)
    change = (value - read) * strength
    return tl.fma(wide, tl.broadcast_to(change[None, :], state.shape), state)


@triton.jit
def recur(
    p_delta,
    p_delta_at,
    p_old_key,
    p_old_value,
    p_old_decay,
    p_old_strength,
    p_query,
    p_key,
    p_value,
    p_decay,
    p_strength,
    p_span_slot,
    p_span_first,
    p_span_count,
    p_span_start,
    p_span_certain,
    p_out,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_VALUES: tl.constexpr,
    RING: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (spans * heads, blocks of values): one span of one head on BLOCK_VALUES columns of its state.

    Loads the state, replays the rows kept since it was stored, runs the span, and stores the state once, after the
    rows that are certain. State and journal are of earlier windows, so both are read before the dependency wait.
    """
    i_span = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    count = tl.load(p_span_count + i_span)
    slot = tl.load(p_span_slot + i_span).to(tl.int64)
    first = tl.load(p_span_first + i_span)
    start = tl.load(p_span_start + i_span)
    certain = tl.load(p_span_certain + i_span)
    key_head = head % KEY_HEADS
    b_key = tl.arange(0, BLOCK)
    b_value = tl.program_id(1) * BLOCK_VALUES + tl.arange(0, BLOCK_VALUES)
    m_key = b_key < DIM
    m_value = b_value < DIM
    m_state = m_key[:, None] & m_value[None, :]
    # A slot that starts over has no past, whatever its memory holds; nor has a place without a span.
    known = (count > 0) & (start > 0)
    past = tl.where(known, start, 0)
    at = tl.load(p_delta_at + slot, mask=known, other=0)
    p_tile = p_delta + (slot * HEADS + head) * (DIM * DIM) + b_key[:, None] * DIM + b_value[None, :]
    state = tl.load(p_tile, mask=(b_key < limit(DIM, known))[:, None] & m_value[None, :], other=0.0)
    while at < past:
        o_ring = slot * RING + at % RING
        key = tl.load(p_old_key + (o_ring * KEY_HEADS + key_head) * DIM + b_key, mask=m_key, other=0.0)
        value = tl.load(p_old_value + (o_ring * HEADS + head) * DIM + b_value, mask=m_value, other=0.0)
        decay = tl.load(p_old_decay + o_ring * HEADS + head)
        strength = tl.load(p_old_strength + o_ring * HEADS + head)
        state = delta_step(state, key, value, decay, strength)
        at += 1
    gdc_wait(PDL)
    gdc_launch(PDL)
    i = 0
    while i < count:
        if i == certain:
            tl.store(p_tile, state, mask=m_state)
        row = first + i
        o_key = (row * KEY_HEADS + key_head) * DIM + b_key
        o_value = (row * HEADS + head) * DIM + b_value
        key = tl.load(p_key + o_key, mask=m_key, other=0.0)
        query = tl.load(p_query + o_key, mask=m_key, other=0.0)
        value = tl.load(p_value + o_value, mask=m_value, other=0.0)
        decay = tl.load(p_decay + row * HEADS + head)
        strength = tl.load(p_strength + row * HEADS + head)
        state = delta_step(state, key, value, decay, strength)
        tl.store(p_out + o_value, tl.sum(state * query[:, None], axis=0), mask=m_value)
        i += 1
    if (count > 0) & (certain >= count):
        tl.store(p_tile, state, mask=m_state)


@triton.jit
def finish(
    p_out,
    p_gate,
    p_norm,
    p_qkv,
    p_key,
    p_value,
    p_decay,
    p_strength,
    p_row_slot,
    p_row_position,
    p_row_span,
    p_span_first,
    p_span_certain,
    p_rows_used,
    p_ring,
    p_old_key,
    p_old_value,
    p_old_decay,
    p_old_strength,
    p_delta_at,
    p_operand,
    o_qkv_term,
    o_qkv_row,
    o_gate_term,
    o_gate_row,
    eps,
    QKV_TERMS: tl.constexpr,
    GATE_TERMS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    PADDED: tl.constexpr,
    TAPS: tl.constexpr,
    RING: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows, 2 key heads + heads): gated norm of one head into operand rows, and what later windows need.

    The rings are written here because every program of the two kernels before may still read them.
    """
    CHANNELS: tl.constexpr = (2 * KEY_HEADS + HEADS) * DIM
    i_row = tl.program_id(0)
    i_head = tl.program_id(1)
    live = i_row < tl.load(p_rows_used)
    slot = tl.load(p_row_slot + i_row).to(tl.int64)
    position = tl.load(p_row_position + i_row)
    span = tl.load(p_row_span + i_row, mask=live, other=0)
    place = i_row - tl.load(p_span_first + span)
    certain = tl.load(p_span_certain + span)
    b_dim = tl.arange(0, BLOCK)
    m_dim = b_dim < limit(DIM, live)
    # A later window starts at or after the certain rows: it never looks back further than the taps from there.
    m_ring = b_dim < limit(DIM, live & (place >= certain - (TAPS - 1)))
    draft = live & (place >= certain)
    m_draft = b_dim < limit(DIM, draft)
    o_ring = slot * RING + position % RING
    o_channel = i_head * DIM + b_dim
    gdc_wait(PDL)
    gdc_launch(PDL)
    raw = sum_terms(p_qkv, i_row * o_qkv_row + o_channel, o_qkv_term, m_ring, QKV_TERMS)
    tl.store(p_ring + o_ring * CHANNELS + o_channel, raw, mask=m_ring)
    if i_head < 2 * KEY_HEADS:
        if i_head >= KEY_HEADS:
            head = i_head - KEY_HEADS
            key = tl.load(p_key + (i_row * KEY_HEADS + head) * DIM + b_dim, mask=m_draft, other=0.0)
            tl.store(p_old_key + (o_ring * KEY_HEADS + head) * DIM + b_dim, key, mask=m_draft)
        elif i_head == 0:
            tl.store(p_delta_at + slot, position + certain, mask=live & (place == 0))
    else:
        head = i_head - 2 * KEY_HEADS
        o_head = i_row * HEADS + head
        value = tl.load(p_value + o_head * DIM + b_dim, mask=m_draft, other=0.0)
        tl.store(p_old_value + (o_ring * HEADS + head) * DIM + b_dim, value, mask=m_draft)
        tl.store(p_old_decay + o_ring * HEADS + head, tl.load(p_decay + o_head, mask=draft, other=0.0), mask=draft)
        strength = tl.load(p_strength + o_head, mask=draft, other=0.0)
        tl.store(p_old_strength + o_ring * HEADS + head, strength, mask=draft)
        out = tl.load(p_out + o_head * DIM + b_dim, mask=m_dim, other=0.0)
        gate = sum_terms(p_gate, i_row * o_gate_row + head * DIM + b_dim, o_gate_term, m_dim, GATE_TERMS)
        norm = tl.load(p_norm + b_dim, mask=b_dim < DIM, other=0.0)
        out = out * tl.rsqrt(tl.sum(out * out, axis=0) / DIM + eps) * norm / (1.0 + tl.exp(-gate))
        p_row = p_operand + i_row.to(tl.int64) * PADDED
        store_operand(p_row, head * DIM + b_dim, out, b_dim < DIM, EXACT)
        if PADDED > HEADS * DIM:
            if head == HEADS - 1:
                b_pad = HEADS * DIM + tl.arange(0, 128)
                store_operand(p_row, b_pad, tl.zeros([128], dtype=tl.float32), b_pad < PADDED, EXACT)
