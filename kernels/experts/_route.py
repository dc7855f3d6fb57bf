"""Device code: the best experts of each row, and entries of one expert with up to 8 rows."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels.device import bring, gdc_sync

NONE = tl.constexpr(-9223372036854775807)
LEAST = tl.constexpr(-2147483648)
BEYOND = tl.constexpr(0x7FFFFFFF)


@triton.jit
def ordered(bits):
    """int32 that orders as the float32 of these bits does, and back again."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.constexpr_function
def _depth(experts):
    """Experts of a lane, where 128 lanes have them all."""
    return max(1, (1 << (experts - 1).bit_length()) // 128)


@triton.jit
def _candidates(key, e, E: tl.constexpr, USED: tl.constexpr):
    """int64 [4, 32]: each warp's USED best experts in its first places, its other places below all experts.

    A candidate is the expert's key and, below it, its number with all bits turned: the larger of two is the better one,
    and no two experts' are equal.
    """
    place = tl.arange(0, 32)[None, :]
    keys = tl.full([4, 32], LEAST, dtype=tl.int32)
    ids = tl.full([4, 32], E - 1, dtype=tl.int32)
    for j in tl.static_range(USED):
        top = tl.max(tl.max(key, axis=1), axis=1, keep_dims=True)
        at = tl.min(tl.min(tl.where(key == top[:, :, None], e, BEYOND), axis=1), axis=1, keep_dims=True)
        keys = tl.where(place == j, top, keys)
        ids = tl.where(place == j, at, ids)
        key = tl.where(e == at[:, :, None], LEAST, key)
    return (keys.to(tl.int64) << 32) | (ids ^ BEYOND).to(tl.int64)


@triton.jit
def _best(key, e, E: tl.constexpr, USED: tl.constexpr, W: tl.constexpr):
    """Ids and logits [W] of the USED best experts; beyond: 0 and -inf. A warp has a quarter of the experts."""
    mine = _candidates(key, e, E, USED)
    # All candidates are in the first W places; places without one are below USED others at least.
    others = tl.max(mine.reshape(4, 32 // W, W), axis=1).reshape(4 * W)
    mine = mine.reshape(128)
    rank = tl.sum((others[:, None] > mine[None, :]).to(tl.int32), axis=0)
    s = tl.arange(0, W)
    chosen = (rank[:, None] == s[None, :]) & (tl.arange(0, 128) % 32 < USED)[:, None]
    found = tl.sum(tl.where(chosen, mine[:, None], 0), axis=0)
    ids = tl.where(s < USED, (found & BEYOND).to(tl.int32) ^ BEYOND, 0)
    best = ordered((found >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
    return ids, tl.where(s < USED, best, -float("inf"))


@triton.jit(do_not_specialize=["RB"])
def top_experts(p_logits, p_used, p_table, p_counts, p_ids, p_weights, p_base, p_rows, p_out, p_share, RB, EL,
                GATE: tl.constexpr, PARTS: tl.constexpr, E: tl.constexpr, USED: tl.constexpr, W: tl.constexpr,
                COUNT: tl.constexpr, SINGLE: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (RB,). Ids and weights [RB, W]: a row's USED best, then the shared expert (id E, sigmoid of column GATE).

    Equal logits: the lower id. Rows from rows_used on get id -1. SINGLE (RB = 1) writes the entries at once.
    Each of four warps finds the best of a quarter of the experts, then all of these are ranked at once. Logits are
    compared as integers: a warp finds the largest of those in one instruction.
    """
    i_row = tl.program_id(0)
    DEPTH: tl.constexpr = _depth(E)
    g = tl.arange(0, 4)[:, None, None]
    e = (g * DEPTH + tl.arange(0, DEPTH)[None, :, None]) * 32 + tl.arange(0, 32)[None, None, :]
    m_e = e < E
    # What nobody read since this layer's last window, brought near while the router's product still runs.
    line = tl.arange(0, 128)
    if SINGLE:
        bring(p_table + tl.minimum(line * 16, E), PDL)
    if COUNT:
        bring(p_counts + tl.minimum(line * 32, E - 1), PDL)
    gdc_sync(PDL)
    m_row = i_row < tl.load(p_used)
    logits = tl.load(p_logits + i_row * EL + e, mask=m_e, other=0.0)
    gate = tl.load(p_logits + i_row * EL + GATE)
    for part in tl.static_range(1, PARTS):
        logits += tl.load(p_logits + (part * RB + i_row) * EL + e, mask=m_e, other=0.0)
        gate += tl.load(p_logits + (part * RB + i_row) * EL + GATE)
    key = ordered(tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True))
    # A NaN can have the least key: no expert may look like none, so that ids are experts, each once.
    key = tl.where(m_e, tl.where(key == LEAST, LEAST + 1, key), LEAST)
    ids, best = _best(key, e, E, USED, W)
    s = tl.arange(0, W)
    share = tl.exp(best - tl.max(best, axis=0))
    share = share / tl.sum(share, axis=0)
    share = tl.where(s == USED, 1.0 / (1.0 + tl.exp(-gate)), share)
    ids = tl.where(s == USED, E, ids)
    ids = tl.where(m_row, ids, -1)
    if SINGLE:
        base = tl.load(p_table + ids, mask=(s <= USED) & (ids >= 0), other=NONE)
    if COUNT:
        tl.atomic_add(p_counts + ids, 1, mask=(s < USED) & (ids >= 0), sem="relaxed")
    tl.store(p_ids + i_row * W + s, ids)
    tl.store(p_weights + i_row * W + s, share)
    if SINGLE:
        m = s <= USED
        a = tl.arange(0, 8)[None, :]
        at = s[:, None] * 8 + a
        tl.store(p_rows + at, 0 * at, mask=m[:, None])
        tl.store(p_out + at, tl.where(a == 0, s[:, None], -1), mask=m[:, None])
        tl.store(p_share + at, share[:, None] + 0.0 * a, mask=m[:, None])
        tl.store(p_base + s, base, mask=m)


@triton.jit(do_not_specialize=["RB"])
def entries(p_ids, p_weights, p_used, p_table, p_base, p_rows, p_out, p_share, RB, E: tl.constexpr,
            USED: tl.constexpr, W: tl.constexpr, P2: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (RB * USED + ceil(RB / 8),). A pair (row, slot) with a multiple of 8 pairs of its expert before it leads an
    entry of up to 8 of that expert's pairs; the others' entries are empty. Then the shared expert's, 8 rows each."""
    p = tl.program_id(0)
    gdc_sync(PDL)
    pairs = RB * USED
    a = tl.arange(0, 8)
    if p < pairs:
        q = tl.arange(0, P2)
        at = (q // USED) * W + q % USED
        ids = tl.load(p_ids + at, mask=q < pairs, other=-2)
        mine = tl.load(p_ids + (p // USED) * W + p % USED)
        same = ((ids == mine) & (mine >= 0)).to(tl.int32)
        rank = tl.sum(tl.where(q < p, same, 0), axis=0)
        if (mine >= 0) & (rank % 8 == 0):
            place = tl.cumsum(same, axis=0) - 1 - rank
            member = (same > 0) & (place >= 0) & (place < 8)
            share = tl.load(p_weights + at, mask=member, other=0.0)
            o_entry = p * 8 + place
            tl.store(p_rows + o_entry, q // USED, mask=member)
            tl.store(p_out + o_entry, (q // USED) * (USED + 1) + q % USED, mask=member)
            tl.store(p_share + o_entry, share, mask=member)
            spare = a >= tl.sum(member.to(tl.int32), axis=0)
            tl.store(p_rows + p * 8 + a, 0 * a + p // USED, mask=spare)
            tl.store(p_out + p * 8 + a, 0 * a - 1, mask=spare)
            tl.store(p_share + p * 8 + a, 0.0 * a, mask=spare)
            tl.store(p_base + p, tl.load(p_table + mine))
        else:
            tl.store(p_base + p, NONE)
    else:
        used = tl.load(p_used)
        first = (p - pairs) * 8
        row = first + a
        inside = (row < used) & (row < RB)
        tl.store(p_base + p, tl.where(first < used, tl.load(p_table + E), NONE))
        tl.store(p_rows + p * 8 + a, tl.where(inside, row, first))
        tl.store(p_out + p * 8 + a, tl.where(inside, row * (USED + 1) + USED, -1))
        tl.store(p_share + p * 8 + a, tl.load(p_weights + row * W + USED, mask=inside, other=0.0))
