"""Device code: products of a planes matrix with up to 40 operand rows, split over the inputs."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels.device import gdc_launch, gdc_wait
from kernels.planes._decode import held_products, strip_products


@triton.jit
def partial_sums(p_strips, p_x, p_y, p_grid, p_used, RB, N, i_group, i_split, i_rows, FMT: tl.constexpr,
                 S: tl.constexpr, RT: tl.constexpr, NCH: tl.constexpr, STRIPS: tl.constexpr, SPLITS: tl.constexpr,
                 AHEAD: tl.constexpr, DEEP: tl.constexpr, EXACT: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """One program's share of y float32 [splits, RB, N]: a warp has a strip of the group, a split and 8 RT rows.

    Without AHEAD a tile's words are loaded when they are needed, in fewer registers; with DEEP all before the wait.
    """
    i_strip = i_group * S
    o_row = i_rows * (8 * RT)
    COUNT: tl.constexpr = NCH // SPLITS
    if EXACT:
        rows = o_row + tl.arange(0, 8 * RT)[None, None, :]
    else:
        rows = o_row + tl.arange(0, RT)[None, None, None, :, None] * 8 + tl.arange(0, 8)[None, :, None, None, None]
    rows = tl.minimum(rows, RB - 1)
    first = i_split * COUNT
    if DEEP:
        acc = held_products(p_strips, i_strip, first, p_x, rows, p_grid, FMT, S, RT, NCH, STRIPS, COUNT, PDL)
    elif AHEAD:
        acc = strip_products(p_strips, i_strip, first, p_x, rows, p_grid, FMT, S, 1, RT, NCH, STRIPS, COUNT, 1, 0,
                             EXACT, PDL)  # fmt: skip
    else:
        gdc_wait(PDL)
        gdc_launch(PDL)
        acc = tl.zeros([S, 32, 8 * RT], dtype=tl.float32)
        for n in range(COUNT):
            acc += strip_products(p_strips, i_strip, first + n, p_x, rows, p_grid, FMT, S, 1, RT, NCH, STRIPS, 1, 1, 0,
                                  EXACT, False)  # fmt: skip
    used = tl.load(p_used)
    r = o_row + tl.arange(0, 8 * RT)[None, None, :]
    n = (i_strip + tl.arange(0, S)[:, None, None]) * 32 + tl.arange(0, 32)[None, :, None]
    acc = tl.where(r < used, acc, 0.0)
    o_y = i_split.to(tl.int64) * RB * N
    tl.store(p_y + o_y + r * N + n, acc, mask=(r < RB) & (n < N))


@triton.jit(do_not_specialize=["RB"])
def linear_kernel(p_strips, p_x, p_y, p_grid, p_used, RB, N, FMT: tl.constexpr, S: tl.constexpr, RT: tl.constexpr,
                  NCH: tl.constexpr, STRIPS: tl.constexpr, SPLITS: tl.constexpr, DEEP: tl.constexpr,
                  EXACT: tl.constexpr, BESIDE: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (strips / S, splits, row groups). DEEP: programs hold all their words before the wait.

    BESIDE: the launch before does not write x. That launch let this one start after its own wait, so x is complete,
    and the two run side by side; the wait at the end keeps what comes next behind both.
    """
    if BESIDE:
        gdc_launch(PDL)
    partial_sums(p_strips, p_x, p_y, p_grid, p_used, RB, N, tl.program_id(0), tl.program_id(1), tl.program_id(2),
                 FMT, S, RT, NCH, STRIPS, SPLITS, True, DEEP, EXACT, PDL and not BESIDE)  # fmt: skip
    if BESIDE:
        gdc_wait(PDL)


@triton.jit(do_not_specialize=["RB"])
def pair_kernel(p_strips, p_small, p_x, p_y, p_z, p_grid, p_used, RB, N, M, FMT: tl.constexpr, SMALL: tl.constexpr,
                S: tl.constexpr, RT: tl.constexpr, NCH: tl.constexpr, STRIPS: tl.constexpr, SPLITS: tl.constexpr,
                SMALL_STRIPS: tl.constexpr, SMALL_SPLITS: tl.constexpr, EXACT: tl.constexpr,
                PDL: tl.constexpr):  # fmt: skip
    """Grid (programs of the small matrix, then those of the other, row groups): two formats in one launch.

    The small one first: its few programs would otherwise wait until others leave, and what follows for them.
    """
    GROUPS: tl.constexpr = (SMALL_STRIPS + S - 1) // S
    i = tl.program_id(0)
    if i < GROUPS * SMALL_SPLITS:
        partial_sums(p_small, p_x, p_z, p_grid, p_used, RB, M, i % GROUPS, i // GROUPS, tl.program_id(1), SMALL, S, RT,
                     NCH, SMALL_STRIPS, SMALL_SPLITS, False, False, EXACT, PDL)  # fmt: skip
    else:
        i -= GROUPS * SMALL_SPLITS
        groups = (STRIPS + S - 1) // S
        partial_sums(p_strips, p_x, p_y, p_grid, p_used, RB, N, i % groups, i // groups, tl.program_id(1), FMT, S, RT,
                     NCH, STRIPS, SPLITS, True, False, EXACT, PDL)  # fmt: skip
