"""Device code of a Gated DeltaNet decode window: one launch from the products in to the operand of the product out."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, SIM102

import triton
import triton.language as tl

from kernels._terms import limit, sum_terms
from kernels._tile import INTERPRETED
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
def delta_step(state, key, value, decay, strength):
    """One token of the delta rule on [keys, values]; the fma is spelled out, so that replayed rows repeat every bit."""
    state = state * tl.exp(decay)
    wide = tl.broadcast_to(key[:, None], state.shape)
    read = tl.sum(state * wide, axis=0)
    change = (value - read) * strength
    return tl.fma(wide, tl.broadcast_to(change[None, :], state.shape), state)


@triton.jit
def add_pairs(a, b, c, d):
    """For a reduction of two tensors at once."""
    return a + c, b + d


@triton.jit
def add_triples(a, b, c, d, e, f):
    """For a reduction of three tensors at once."""
    return a + d, b + e, c + f


@triton.jit
def product(a, b, BLOCK: tl.constexpr):
    """a * b of a head's vectors, to be summed over lanes.

    A lane with one product adds its neighbour's in one fma, its own not rounded, so that lanes end with sums that
    differ in the last bit. Of several warps one lane's sum is everybody's. A head within a warp rounds its products
    first, or threads that share a value of the output would store different ones.
    """
    return tl.fma(a, b, tl.zeros_like(a)) if BLOCK <= 32 else a * b


@triton.jit
def units(query, key, scale, BLOCK: tl.constexpr):
    """Query and key of length `scale` and one, and their product."""
    q2, k2, qk = product(query, query, BLOCK), product(key, key, BLOCK), product(query, key, BLOCK)
    if INTERPRETED:  # which reduces several tensors value by value
        q = tl.sum(q2, axis=0)
        k = tl.sum(k2, axis=0)
        both = tl.sum(qk, axis=0)
    else:
        q, k, both = tl.reduce((q2, k2, qk), 0, add_triples)
    q = tl.rsqrt(q + 1e-6) * scale
    k = tl.rsqrt(k + 1e-6)
    return query * q, key * k, both * q * k


@triton.jit
def step_and_read(state, key, query, both, value, decay, strength):
    """`delta_step`, and the new state read by the query: the old state so read, and what the step adds to it.

    `both` is the product of key and query. So key and query read the state at once.
    """
    state = state * tl.exp(decay)
    wide = tl.broadcast_to(key[:, None], state.shape)
    if INTERPRETED:
        read = tl.sum(state * wide, axis=0)
        out = tl.sum(state * query[:, None], axis=0)
    else:
        read, out = tl.reduce((state * wide, state * query[:, None]), 0, add_pairs)
    change = (value - read) * strength
    state = tl.fma(wide, tl.broadcast_to(change[None, :], state.shape), state)
    return state, out + change * both


@triton.jit
def convolved(first, second, third, new, w_first, w_second, w_third, w_new):
    """Convolution and silu of the newest row and the three before it; the oldest first, whoever held it."""
    signal = first * w_first
    signal = tl.fma(second, w_second, signal)
    signal = tl.fma(third, w_third, signal)
    signal = tl.fma(new, w_new, signal)
    return signal / (1.0 + tl.exp(-signal))


@triton.jit
def scalar_terms(p_value, o_term, TERMS: tl.constexpr):
    """Sum of up to 16 terms of one value, loaded at once: an address of each would take registers of the whole loop."""
    b_term = tl.arange(0, 16)
    return tl.sum(tl.load(p_value + b_term * o_term, mask=b_term < TERMS, other=0.0), axis=0)


@triton.jit
def older(p_ring, slot, start, o_channel, mask, BACK: tl.constexpr, CHANNELS: tl.constexpr, RING: tl.constexpr):
    """Raw inputs `BACK` positions before the span; zero before the sequence."""
    place = slot * RING + (start - BACK + RING) % RING
    return tl.load(p_ring + place * CHANNELS + o_channel, mask=mask & (start >= BACK), other=0.0)


@triton.jit
def taps_of(p_conv, o_channel, mask, TAPS: tl.constexpr, CHANNELS: tl.constexpr):
    """Weights of four rows, the oldest first; zeros where there are fewer taps."""
    first = tl.load(p_conv + (TAPS - 4) * CHANNELS + o_channel, mask=mask & (TAPS > 3), other=0.0)
    second = tl.load(p_conv + (TAPS - 3) * CHANNELS + o_channel, mask=mask & (TAPS > 2), other=0.0)
    third = tl.load(p_conv + (TAPS - 2) * CHANNELS + o_channel, mask=mask & (TAPS > 1), other=0.0)
    return first, second, third, tl.load(p_conv + (TAPS - 1) * CHANNELS + o_channel, mask=mask, other=0.0)


@triton.jit
def mix(
    p_qkv, p_gate, p_alpha, p_beta, p_conv, p_rate, p_bias, p_norm,
    p_delta, p_delta_at, p_ring, p_old_key, p_old_value, p_old_decay, p_old_strength,
    p_span_slot, p_span_first, p_span_count, p_span_start, p_span_certain,
    p_key, p_value, p_decay, p_strength, p_operand,
    o_qkv_term, o_qkv_row, o_gate_term, o_gate_row, o_alpha_term, o_alpha_row, o_beta_term, o_beta_row, scale, eps,
    QKV_TERMS: tl.constexpr, GATE_TERMS: tl.constexpr, ALPHA_TERMS: tl.constexpr, BETA_TERMS: tl.constexpr,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr,
    TAPS: tl.constexpr, RING: tl.constexpr, KEEP: tl.constexpr, EXACT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (spans * heads,): one span of one value head, from raw products to its inputs of the operand rows.

    Loads the state, replays the draft rows kept since it was stored, runs the span's rows and stores the state once,
    after the rows that are certain. State, journal and ring are of earlier windows, so they are read before the
    dependency wait. Heads of one key head each compute its query and key, and the first of them keeps what later
    windows need: in ring and journal (KEEP), where nothing that a neighbour may still have to read is overwritten,
    or in buffers for `keep`.
    """
    CHANNELS: tl.constexpr = (2 * KEY_HEADS + HEADS) * DIM
    i_span = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    count = tl.load(p_span_count + i_span)
    slot = tl.load(p_span_slot + i_span).to(tl.int64)
    first = tl.load(p_span_first + i_span)
    start = tl.load(p_span_start + i_span)
    certain = tl.load(p_span_certain + i_span)
    key_head = head % KEY_HEADS
    b_dim = tl.arange(0, BLOCK)
    m_dim = b_dim < DIM
    m_state = m_dim[:, None] & m_dim[None, :]
    # A slot that starts over has no past, whatever its memory holds; nor has a place without a span.
    known = (count > 0) & (start > 0)
    past = tl.where(known, start, 0)
    m_past = b_dim < limit(DIM, known)
    at = tl.load(p_delta_at + slot * HEADS + head, mask=known, other=0)
    p_tile = p_delta + (slot * HEADS + head) * (DIM * DIM) + b_dim[:, None] * DIM + b_dim[None, :]
    state = tl.load(p_tile, mask=m_past[:, None] & m_dim[None, :], other=0.0)
    o_query = key_head * DIM + b_dim
    o_key = (KEY_HEADS + key_head) * DIM + b_dim
    o_value = (2 * KEY_HEADS + head) * DIM + b_dim
    wq0, wq1, wq2, wq3 = taps_of(p_conv, o_query, m_dim, TAPS, CHANNELS)
    wk0, wk1, wk2, wk3 = taps_of(p_conv, o_key, m_dim, TAPS, CHANNELS)
    wv0, wv1, wv2, wv3 = taps_of(p_conv, o_value, m_dim, TAPS, CHANNELS)
    q0 = older(p_ring, slot, past, o_query, m_past, 3, CHANNELS, RING)
    q1 = older(p_ring, slot, past, o_query, m_past, 2, CHANNELS, RING)
    q2 = older(p_ring, slot, past, o_query, m_past, 1, CHANNELS, RING)
    k0 = older(p_ring, slot, past, o_key, m_past, 3, CHANNELS, RING)
    k1 = older(p_ring, slot, past, o_key, m_past, 2, CHANNELS, RING)
    k2 = older(p_ring, slot, past, o_key, m_past, 1, CHANNELS, RING)
    v0 = older(p_ring, slot, past, o_value, m_past, 3, CHANNELS, RING)
    v1 = older(p_ring, slot, past, o_value, m_past, 2, CHANNELS, RING)
    v2 = older(p_ring, slot, past, o_value, m_past, 1, CHANNELS, RING)
    norm = tl.load(p_norm + b_dim, mask=m_dim, other=0.0)
    rate = tl.load(p_rate + head)
    bias = tl.load(p_bias + head)
    while at < past:
        o_ring = slot * RING + at % RING
        key = tl.load(p_old_key + (o_ring * KEY_HEADS + key_head) * DIM + b_dim, mask=m_dim, other=0.0)
        value = tl.load(p_old_value + (o_ring * HEADS + head) * DIM + b_dim, mask=m_dim, other=0.0)
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
        q3 = sum_terms(p_qkv, row * o_qkv_row + o_query, o_qkv_term, m_dim, QKV_TERMS)
        k3 = sum_terms(p_qkv, row * o_qkv_row + o_key, o_qkv_term, m_dim, QKV_TERMS)
        v3 = sum_terms(p_qkv, row * o_qkv_row + o_value, o_qkv_term, m_dim, QKV_TERMS)
        gate = sum_terms(p_gate, row * o_gate_row + head * DIM + b_dim, o_gate_term, m_dim, GATE_TERMS)
        alpha = scalar_terms(p_alpha + row * o_alpha_row + head, o_alpha_term, ALPHA_TERMS)
        beta = scalar_terms(p_beta + row * o_beta_row + head, o_beta_term, BETA_TERMS)
        query = convolved(q0, q1, q2, q3, wq0, wq1, wq2, wq3)
        key = convolved(k0, k1, k2, k3, wk0, wk1, wk2, wk3)
        value = convolved(v0, v1, v2, v3, wv0, wv1, wv2, wv3)
        decay = softplus(alpha + bias) * rate
        strength = 1.0 / (1.0 + tl.exp(-beta))
        query, key, both = units(query, key, scale, BLOCK)
        state, out = step_and_read(state, key, query, both, value, decay, strength)
        out = out * tl.rsqrt(tl.sum(product(out, out, BLOCK), axis=0) / DIM + eps) * norm / (1.0 + tl.exp(-gate))
        p_row = p_operand + row.to(tl.int64) * PADDED
        store_operand(p_row, head * DIM + b_dim, out, m_dim, EXACT)
        if PADDED > HEADS * DIM:
            if head == HEADS - 1:
                b_pad = HEADS * DIM + tl.arange(0, 128)
                store_operand(p_row, b_pad, tl.zeros([128], dtype=tl.float32), b_pad < PADDED, EXACT)
        o_ring = slot * RING + (start + i) % RING
        if KEEP:
            # A later window starts at or after the certain rows: it never looks back further than the taps from there.
            m_ring = b_dim < limit(DIM, i >= certain - (TAPS - 1))
            m_first = b_dim < limit(DIM, (i >= certain - (TAPS - 1)) & (head < KEY_HEADS))
            tl.store(p_ring + o_ring * CHANNELS + o_query, q3, mask=m_first)
            tl.store(p_ring + o_ring * CHANNELS + o_key, k3, mask=m_first)
            tl.store(p_ring + o_ring * CHANNELS + o_value, v3, mask=m_ring)
            keep_step(p_old_key, p_old_value, p_old_decay, p_old_strength, key, value, decay, strength, o_ring, head,
                      b_dim, i >= certain, KEY_HEADS, HEADS, DIM)  # fmt: skip
        else:
            keep_step(p_key, p_value, p_decay, p_strength, key, value, decay, strength, row, head,
                      b_dim, i >= certain, KEY_HEADS, HEADS, DIM)  # fmt: skip
        q0, q1, q2 = q1, q2, q3
        k0, k1, k2 = k1, k2, k3
        v0, v1, v2 = v1, v2, v3
        i += 1
    if (count > 0) & (certain >= count):
        tl.store(p_tile, state, mask=m_state)
    if KEEP:
        tl.store(p_delta_at + slot * HEADS + head, start + certain, mask=count > 0)


@triton.jit
def keep_step(
    p_key, p_value, p_decay, p_strength, key, value, decay, strength, place, head, b_dim, draft,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """What a draft row does to the state, into `place` of ring or buffer."""
    m_draft = b_dim < limit(DIM, draft)
    m_first = b_dim < limit(DIM, draft & (head < KEY_HEADS))
    tl.store(p_key + (place * KEY_HEADS + head) * DIM + b_dim, key, mask=m_first)
    tl.store(p_value + (place * HEADS + head) * DIM + b_dim, value, mask=m_draft)
    tl.store(p_decay + place * HEADS + head, decay, mask=draft)
    tl.store(p_strength + place * HEADS + head, strength, mask=draft)


@triton.jit
def keep(
    p_qkv, p_key, p_value, p_decay, p_strength,
    p_row_slot, p_row_position, p_row_span, p_span_first, p_span_certain, p_rows_used,
    p_ring, p_old_key, p_old_value, p_old_decay, p_old_strength, p_delta_at, o_qkv_term, o_qkv_row,
    QKV_TERMS: tl.constexpr, KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
    TAPS: tl.constexpr, RING: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (rows, 2 key heads + heads): what later windows need, of spans so long that `mix` may not write it."""
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
    else:
        head = i_head - 2 * KEY_HEADS
        o_head = i_row * HEADS + head
        value = tl.load(p_value + o_head * DIM + b_dim, mask=m_draft, other=0.0)
        tl.store(p_old_value + (o_ring * HEADS + head) * DIM + b_dim, value, mask=m_draft)
        tl.store(p_old_decay + o_ring * HEADS + head, tl.load(p_decay + o_head, mask=draft, other=0.0), mask=draft)
        strength = tl.load(p_strength + o_head, mask=draft, other=0.0)
        tl.store(p_old_strength + o_ring * HEADS + head, strength, mask=draft)
        tl.store(p_delta_at + slot * HEADS + head, position + certain, mask=live & (place == 0))
