"""Device code of a Gated DeltaNet prompt chunk: prepare, solve, recur, finish, and the tail that decoding reads.

Inside a block of CHUNK rows the delta rule is one triangular system. With cumulative log decay g, strengths beta and
the state S before the block, the updates U (row j adds `k_j U_j'`) satisfy

    (I + A) U = beta v - (beta exp(g) k) S,   A[i, j] = beta_i exp(g_i - g_j) (k_i . k_j) for j < i

so that U = write - read S with two products that do not know S; only S goes from block to block.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels._many import at_rows, load_place, narrow, product
from kernels._tile import INTERPRETED
from kernels.gdn._triton import delta_step, softplus

CORNER = tl.constexpr(16)


@triton.jit(do_not_specialize=["first"])
def prepare(
    p_qkv, p_alpha, p_beta, p_conv, p_rate, p_bias, p_ring,
    p_query, p_key, p_value, p_decay, p_strength,
    o_qkv_row, o_alpha_row, o_beta_row, p_place, first, scale,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr,
    RING: tl.constexpr, CHUNK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of rows, 2 key heads + heads): convolution, silu, unit queries and keys, decay, strength.

    Rows past the last are stored as zeros with no decay and no strength: they change nothing.
    """
    CHANNELS: tl.constexpr = (2 * KEY_HEADS + HEADS) * DIM
    i_head = tl.program_id(1)
    slot, start, count = load_place(p_place)
    b_place = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    b_row = first + b_place
    live = b_row < count
    b_dim = tl.arange(0, BLOCK)
    m_dim = b_dim < DIM
    b_channel = i_head * DIM + b_dim
    signal = tl.zeros([CHUNK, BLOCK], dtype=tl.float32)
    for i in tl.static_range(TAPS):
        tap = tl.load(p_conv + i * CHANNELS + b_channel, mask=m_dim, other=0.0)
        source = b_row - (TAPS - 1 - i)
        m_new = (live & (source >= 0))[:, None] & m_dim[None, :]
        new = tl.load(p_qkv + at_rows(source, o_qkv_row, b_channel), mask=m_new, other=0.0)
        signal += new.to(tl.float32) * tap[None, :]
        if first + tl.program_id(0) == 0:
            position = start + source
            m_old = (live & (source < 0) & (position >= 0))[:, None] & m_dim[None, :]
            place = slot * RING + (position + RING) % RING
            old = tl.load(p_ring + at_rows(place, CHANNELS, b_channel), mask=m_old, other=0.0)
            signal += old * tap[None, :]
    signal = signal / (1.0 + tl.exp(-signal))
    if i_head < 2 * KEY_HEADS:
        unit = signal * tl.rsqrt(tl.sum(signal * signal, axis=1) + 1e-6)[:, None]
        if i_head < KEY_HEADS:
            o_out = at_rows(b_place, KEY_HEADS * DIM, b_channel)
            tl.store(p_query + o_out, narrow(unit * scale, EXACT), mask=m_dim[None, :])
        else:
            o_out = at_rows(b_place, KEY_HEADS * DIM, b_channel - KEY_HEADS * DIM)
            tl.store(p_key + o_out, narrow(unit, EXACT), mask=m_dim[None, :])
    else:
        head = i_head - 2 * KEY_HEADS
        o_out = at_rows(b_place, HEADS * DIM, head * DIM + b_dim)
        tl.store(p_value + o_out, narrow(signal, EXACT), mask=m_dim[None, :])
        o_row = b_row.to(tl.int64)
        alpha = tl.load(p_alpha + o_row * o_alpha_row + head, mask=live, other=0.0).to(tl.float32)
        beta = tl.load(p_beta + o_row * o_beta_row + head, mask=live, other=0.0).to(tl.float32)
        step = softplus(alpha + tl.load(p_bias + head)) * tl.load(p_rate + head)
        # Sums of a block may be large while the differences that matter are small: they are kept in float64.
        decay = tl.cumsum(tl.where(live, step, 0.0).to(tl.float64), axis=0)
        tl.store(p_decay + b_place * HEADS + head, decay)
        tl.store(p_strength + b_place * HEADS + head, tl.where(live, 1.0 / (1.0 + tl.exp(-beta)), 0.0))


@triton.jit
def invert_corners(pull, CHUNK: tl.constexpr):
    """Inverses of the 16 x 16 unit triangles on the diagonal of I + pull, in place in [CHUNK, CHUNK], by substitution.

    Not by powers: equal keys, as repeated tokens have, make these grow like binomial coefficients.
    """
    PARTS: tl.constexpr = CHUNK // CORNER
    b_row = tl.arange(0, CHUNK)
    own = b_row[:, None] // CORNER == b_row[None, :] // CORNER
    corners = tl.sum(tl.reshape(tl.where(own, -pull, 0.0), [PARTS, CORNER, PARTS, CORNER]), axis=2)
    b_corner = tl.arange(0, CORNER)
    for i in range(1, CORNER):
        here = (b_corner == i)[None, :, None]
        row = tl.sum(tl.where(here, corners, 0.0), axis=1)
        row += tl.sum(row[:, :, None] * corners, axis=1)
        corners = tl.where(here, row[:, None, :], corners)
    corners += (b_corner[:, None] == b_corner[None, :]).to(tl.float32)[None, :, :]
    wide = tl.broadcast_to(corners[:, :, None, :], [PARTS, CORNER, PARTS, CORNER])
    return tl.where(own, tl.reshape(wide, [CHUNK, CHUNK]), 0.0)


@triton.jit
def invert(pull, CHUNK: tl.constexpr, EXACT: tl.constexpr):
    """(I + pull)^-1 for a strictly lower pull: corners, then what lies below them, whose fourth power is zero."""
    corners = invert_corners(pull, CHUNK)
    if CHUNK == CORNER:
        return corners
    b_row = tl.arange(0, CHUNK)
    own = b_row[:, None] // CORNER == b_row[None, :] // CORNER
    one = product(corners, tl.where(own, 0.0, pull), EXACT)
    series = (b_row[:, None] == b_row[None, :]).to(tl.float32) - one
    if CHUNK > 2 * CORNER:
        two = product(one, one, EXACT)
        series += two - product(one, two, EXACT)
    return product(series, corners, EXACT)


@triton.jit
def solve(
    p_key, p_value, p_decay, p_strength, p_read, p_update,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of rows, heads): what a block's updates read from the state and what they are without one."""
    head = tl.program_id(1)
    b_row = tl.arange(0, CHUNK)
    b_place = tl.program_id(0) * CHUNK + b_row
    b_dim = tl.arange(0, BLOCK)
    m_dim = (b_dim < DIM)[None, :]
    o_key = at_rows(b_place, KEY_HEADS * DIM, head % KEY_HEADS * DIM + b_dim)
    o_value = at_rows(b_place, HEADS * DIM, head * DIM + b_dim)
    key = tl.load(p_key + o_key, mask=m_dim, other=0.0)
    value = tl.load(p_value + o_value, mask=m_dim, other=0.0)
    decay = tl.load(p_decay + b_place * HEADS + head)
    strength = tl.load(p_strength + b_place * HEADS + head)
    before = b_row[:, None] > b_row[None, :]
    fall = tl.exp(tl.where(before, (decay[:, None] - decay[None, :]).to(tl.float32), 0.0))
    pull = tl.where(before, product(key, tl.trans(key), EXACT) * fall * strength[:, None], 0.0)
    inverse = narrow(invert(pull, CHUNK, EXACT), EXACT)
    faded = key.to(tl.float32) * (strength * tl.exp(decay.to(tl.float32)))[:, None]
    tl.store(p_read + o_value, narrow(product(inverse, narrow(faded, EXACT), EXACT), EXACT), mask=m_dim)
    strong = value.to(tl.float32) * strength[:, None]
    tl.store(p_update + o_value, narrow(product(inverse, narrow(strong, EXACT), EXACT), EXACT), mask=m_dim)


@triton.jit
def recur_block(
    block, state, p_key, p_read, p_update, p_decay, p_states, head, b_value,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """One block of rows: notes the state before it, completes its updates in place, returns the state after it."""
    b_key = tl.arange(0, BLOCK)
    m_key = b_key < DIM
    m_value = (b_value < DIM)[None, :]
    b_place = block * CHUNK + tl.arange(0, CHUNK)
    p_note = p_states + (block * HEADS + head).to(tl.int64) * (DIM * DIM) + b_key[:, None] * DIM + b_value[None, :]
    before = narrow(state, EXACT)
    tl.store(p_note, before, mask=m_key[:, None] & m_value)
    o_update = at_rows(b_place, HEADS * DIM, head * DIM + b_value)
    o_key = at_rows(b_place, KEY_HEADS * DIM, head % KEY_HEADS * DIM + b_key)
    key = tl.load(p_key + o_key, mask=m_key[None, :], other=0.0)
    read = tl.load(p_read + at_rows(b_place, HEADS * DIM, head * DIM + b_key), mask=m_key[None, :], other=0.0)
    update = tl.load(p_update + o_update, mask=m_value, other=0.0)
    decay = tl.load(p_decay + b_place * HEADS + head)
    total = tl.load(p_decay + (block * CHUNK + CHUNK - 1) * HEADS + head)
    change = update.to(tl.float32) - product(read, before, EXACT)
    tl.store(p_update + o_update, narrow(change, EXACT), mask=m_value)
    change = change * tl.exp((total - decay).to(tl.float32))[:, None]
    return state * tl.exp(total.to(tl.float32)) + product(tl.trans(key), narrow(change, EXACT), EXACT)


@triton.jit(do_not_specialize=["first", "blocks"])
def recur(
    p_delta, p_delta_at, p_old_key, p_old_value, p_old_decay, p_old_strength,
    p_key, p_read, p_update, p_decay, p_states, p_place, first, blocks,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr, RING: tl.constexpr, EXACT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (heads, blocks of columns): the state through all blocks of rows, noted before each; updates in place.

    First replays the draft rows that decoding kept since the state was stored, as a decode window does.
    """
    head = tl.program_id(0)
    slot, start, count = load_place(p_place)
    blocks = tl.minimum(blocks, (count - first + CHUNK - 1) // CHUNK)
    replay_end = tl.where(first == 0, start, 0)
    key_head = head % KEY_HEADS
    b_key = tl.arange(0, BLOCK)
    b_value = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    m_key = b_key < DIM
    m_value = b_value < DIM
    m_state = m_key[:, None] & m_value[None, :]
    p_tile = p_delta + (slot * HEADS + head) * (DIM * DIM) + b_key[:, None] * DIM + b_value[None, :]
    state = tl.load(p_tile, mask=m_state & (start + first > 0), other=0.0)
    at = tl.load(p_delta_at + slot * HEADS + head)
    while at < replay_end:
        o_ring = slot * RING + at % RING
        key = tl.load(p_old_key + (o_ring * KEY_HEADS + key_head) * DIM + b_key, mask=m_key, other=0.0)
        value = tl.load(p_old_value + (o_ring * HEADS + head) * DIM + b_value, mask=m_value, other=0.0)
        decay = tl.load(p_old_decay + o_ring * HEADS + head)
        strength = tl.load(p_old_strength + o_ring * HEADS + head)
        state = delta_step(state, key, value, decay, strength)
        at += 1
    if INTERPRETED:
        block = blocks * 0
        while block < blocks:
            state = recur_block(
                block, state, p_key, p_read, p_update, p_decay, p_states, head, b_value,
                KEY_HEADS, HEADS, DIM, BLOCK, CHUNK, EXACT,
            )  # fmt: skip
            block += 1
    else:
        for at_block in tl.range(0, blocks, num_stages=STAGES):
            state = recur_block(
                at_block, state, p_key, p_read, p_update, p_decay, p_states, head, b_value,
                KEY_HEADS, HEADS, DIM, BLOCK, CHUNK, EXACT,
            )  # fmt: skip
    tl.store(p_tile, state, mask=m_state)


@triton.jit(do_not_specialize=["first"])
def finish(
    p_query, p_key, p_update, p_decay, p_states, p_gate, p_norm, p_out, o_gate_row, p_place, first, eps,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of rows, heads): outputs of a block from its state and its updates, gated norm."""
    i_block = tl.program_id(0)
    head = tl.program_id(1)
    _, _, count = load_place(p_place)
    if first + i_block * CHUNK >= count:
        return
    b_row = tl.arange(0, CHUNK)
    b_place = i_block * CHUNK + b_row
    row = first + b_place
    live = row < count
    b_dim = tl.arange(0, BLOCK)
    m_dim = (b_dim < DIM)[None, :]
    o_key = at_rows(b_place, KEY_HEADS * DIM, head % KEY_HEADS * DIM + b_dim)
    query = tl.load(p_query + o_key, mask=m_dim, other=0.0)
    key = tl.load(p_key + o_key, mask=m_dim, other=0.0)
    o_state = (i_block * HEADS + head).to(tl.int64) * (DIM * DIM) + b_dim[:, None] * DIM + b_dim[None, :]
    state = tl.load(p_states + o_state, mask=(b_dim < DIM)[:, None] & m_dim, other=0.0)
    decay = tl.load(p_decay + b_place * HEADS + head)
    reached = b_row[:, None] >= b_row[None, :]
    fall = tl.exp(tl.where(reached, (decay[:, None] - decay[None, :]).to(tl.float32), 0.0))
    weight = tl.where(reached, product(query, tl.trans(key), EXACT) * fall, 0.0)
    out = product(query, state, EXACT) * tl.exp(decay.to(tl.float32))[:, None]
    update = tl.load(p_update + at_rows(b_place, HEADS * DIM, head * DIM + b_dim), mask=m_dim, other=0.0)
    out += product(narrow(weight, EXACT), update, EXACT)
    m_out = live[:, None] & m_dim
    gate = tl.load(p_gate + at_rows(row, o_gate_row, head * DIM + b_dim), mask=m_out, other=0.0).to(tl.float32)
    norm = tl.load(p_norm + b_dim, mask=b_dim < DIM, other=0.0)
    scale = tl.rsqrt(tl.sum(out * out, axis=1) / DIM + eps)
    out = out * scale[:, None] * norm[None, :] / (1.0 + tl.exp(-gate))
    tl.store(p_out + at_rows(row, HEADS * DIM, head * DIM + b_dim), narrow(out, EXACT), mask=m_out)


@triton.jit
def note_tail(
    p_qkv, p_ring, p_delta_at, o_qkv_row, p_place,
    CHANNELS: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    """Grid (ring positions, blocks of channels): the last raw rows to the ring, and how far the state now reaches.

    Last, because the first block of rows reads from the ring what came before the chunk.
    """
    slot, start, count = load_place(p_place)
    row = count - 1 - tl.program_id(0)
    b_channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_channel = (b_channel < CHANNELS) & (row >= 0)
    raw = tl.load(p_qkv + row.to(tl.int64) * o_qkv_row + b_channel, mask=m_channel, other=0.0).to(tl.float32)
    place = slot * RING + (start + row + RING) % RING
    tl.store(p_ring + place * CHANNELS + b_channel, raw, mask=m_channel)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        b_head = tl.arange(0, BLOCK)
        tl.store(p_delta_at + slot * HEADS + b_head, b_head * 0 + start + count, mask=b_head < HEADS)
