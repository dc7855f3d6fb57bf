"""Device code: gate and up projections with SwiGLU, and the down projection, of entries of one expert and up to 8 rows.

An entry's base is ((address - anchor) / 16) * 2 + format bit: a pointer made from the anchor, a 16-byte aligned tensor,
is known to be aligned, a raw address is not. At the address are the expert's gate-up planes, then its down planes.
A window reads an expert's codes once, or once for 8 rows: caches are told to give them up first.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels.device import gdc_sync, store_operand
from kernels.experts._route import NONE
from kernels.planes._decode import held_products, load_levels, strip_products


@triton.jit
def _gate_up(p_strips, p_x, rows, p_h, p_grid, i_strip, FMT: tl.constexpr, S: tl.constexpr, NCH: tl.constexpr,
             STRIPS: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """One strip, 16 gate rows and 16 up rows: h [8, 16 STRIPS] = silu(gate) * up, as operand rows."""
    acc = strip_products(p_strips, i_strip, 0, p_x, rows, p_grid, FMT, S, 1, 1, NCH, STRIPS, NCH // S, 0, 1, EXACT, 0,
                         ONCE=True)  # fmt: skip
    both = tl.permute(tl.sum(acc, axis=0).reshape(2, 16, 8), (1, 2, 0))
    gate, up = tl.split(both)
    f = i_strip * 16 + tl.arange(0, 16)[:, None]
    r = tl.arange(0, 8)[None, :]
    h = gate / (1.0 + tl.exp(-gate)) * up
    store_operand(p_h + r * (STRIPS * 16), f, h, r < 8, EXACT)


@triton.jit(do_not_specialize=["PAIRS"])
def gate_up_kernel(p_anchor, p_base, p_rows, p_x, p_h, p_grid, PAIRS, BLOCK: tl.constexpr, FMT: tl.constexpr,
                   FMT_HOST: tl.constexpr, FMT_SHARED: tl.constexpr, S: tl.constexpr, NCH: tl.constexpr,
                   STRIPS: tl.constexpr, STRIPS_SHARED: tl.constexpr, EXACT: tl.constexpr,
                   PDL: tl.constexpr):  # fmt: skip
    """Grid (entries, strips). K is split over the S warps. h: BLOCK values an entry, its 8 rows one after the other."""
    p = tl.program_id(0)
    i_strip = tl.program_id(1)
    gdc_sync(PDL)
    base = tl.load(p_base + p)
    if base != NONE:
        p_strips = p_anchor + (base >> 1) * 4
        if EXACT:
            rows = tl.load(p_rows + p * 8 + tl.arange(0, 8)[None, None, :])
        else:
            rows = tl.load(p_rows + p * 8 + tl.arange(0, 8)[None, :, None, None, None])
        o_h = p.to(tl.int64) * BLOCK
        if p >= PAIRS:
            if i_strip < STRIPS_SHARED:
                _gate_up(p_strips, p_x, rows, p_h + o_h, p_grid, i_strip, FMT_SHARED, S, NCH, STRIPS_SHARED, EXACT)
        elif i_strip < STRIPS:
            if FMT_HOST == FMT:
                _gate_up(p_strips, p_x, rows, p_h + o_h, p_grid, i_strip, FMT, S, NCH, STRIPS, EXACT)
            elif (base & 1) == 1:
                _gate_up(p_strips, p_x, rows, p_h + o_h, p_grid, i_strip, FMT_HOST, S, NCH, STRIPS, EXACT)
            else:
                _gate_up(p_strips, p_x, rows, p_h + o_h, p_grid, i_strip, FMT, S, NCH, STRIPS, EXACT)


@triton.jit
def _down(p_strips, p_h, rows, p_out, p_share, p_y, p_grid, p_levels, i_strip, N, FMT: tl.constexpr, S: tl.constexpr,
          NCH: tl.constexpr, STRIPS: tl.constexpr, DEEP: tl.constexpr, EXACT: tl.constexpr,
          PDL: tl.constexpr):  # fmt: skip
    r = tl.arange(0, 8)[None, None, :]
    out = tl.load(p_out + r)
    share = tl.load(p_share + r)
    levels = load_levels(p_levels, FMT)
    if DEEP:
        acc = held_products(p_strips, i_strip, 0, p_h, rows, p_grid, FMT, S, 1, NCH, STRIPS, NCH, PDL, levels,
                            ONCE=True)  # fmt: skip
    else:
        acc = strip_products(p_strips, i_strip, 0, p_h, rows, p_grid, FMT, S, 1, 1, NCH, STRIPS, NCH, 1, 0, EXACT, PDL,
                             levels, ONCE=True)  # fmt: skip
    n = (i_strip + tl.arange(0, S)[:, None, None]) * 32 + tl.arange(0, 32)[None, :, None]
    tl.store(p_y + out.to(tl.int64) * N + n, acc * share, mask=(out >= 0) & (n < N))


@triton.jit(do_not_specialize=["PAIRS"])
def down_kernel(p_anchor, p_base, p_out, p_share, p_h, p_y, p_grid, p_levels, PAIRS, N, BLOCK: tl.constexpr,
                FMT: tl.constexpr, FMT_HOST: tl.constexpr, FMT_SHARED: tl.constexpr, SKIP: tl.constexpr,
                SKIP_HOST: tl.constexpr, SKIP_SHARED: tl.constexpr, S: tl.constexpr, NCH: tl.constexpr,
                NCH_SHARED: tl.constexpr, STRIPS: tl.constexpr, DEEP: tl.constexpr, EXACT: tl.constexpr,
                PDL: tl.constexpr):  # fmt: skip
    """Grid (entries, strips / S). y float32 [RB * (used + 1), N]: weighted products of (row, slot). BLOCK: words of h
    an entry (uint32 of fp16, or float32); SKIP: words of gate-up planes before the down planes.

    Entries come from the launch before the one before, so they and the first words (DEEP: all words) are loaded before
    the wait, while that launch still computes.
    """
    p = tl.program_id(0)
    i_strip = tl.program_id(1) * S
    base = tl.load(p_base + p)
    if base != NONE:
        p_strips = p_anchor + (base >> 1) * 4
        rows = tl.arange(0, 8)[None, None, :] if EXACT else tl.arange(0, 8)[None, :, None, None, None]
        p_in = p_h + p.to(tl.int64) * BLOCK
        o_entry = p * 8
        if p >= PAIRS:
            _down(p_strips + SKIP_SHARED, p_in, rows, p_out + o_entry, p_share + o_entry, p_y, p_grid, p_levels,
                  i_strip, N, FMT_SHARED, S, NCH_SHARED, STRIPS, 0, EXACT, PDL)  # fmt: skip
        elif FMT_HOST == FMT:
            skip = SKIP if SKIP_HOST == SKIP else tl.where((base & 1) == 1, SKIP_HOST, SKIP)
            _down(p_strips + skip, p_in, rows, p_out + o_entry, p_share + o_entry, p_y, p_grid, p_levels, i_strip, N,
                  FMT, S, NCH, STRIPS, DEEP, EXACT, PDL)  # fmt: skip
        elif (base & 1) == 1:
            _down(p_strips + SKIP_HOST, p_in, rows, p_out + o_entry, p_share + o_entry, p_y, p_grid, p_levels, i_strip,
                  N, FMT_HOST, S, NCH, STRIPS, 0, EXACT, PDL)  # fmt: skip
        else:
            _down(p_strips + SKIP, p_in, rows, p_out + o_entry, p_share + o_entry, p_y, p_grid, p_levels, i_strip, N,
                  FMT, S, NCH, STRIPS, 0, EXACT, PDL)  # fmt: skip
    else:
        gdc_sync(PDL)
