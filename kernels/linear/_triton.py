"""Device code: products of a planes matrix with up to 40 operand rows, split over the inputs."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels.device import gdc_launch, gdc_wait
from kernels.planes._decode import strip_products


@triton.jit(do_not_specialize=["RB"])
def linear_kernel(p_strips, p_x, p_y, p_grid, p_used, RB, N, FMT: tl.constexpr, S: tl.constexpr, RT: tl.constexpr,
                  NCH: tl.constexpr, STRIPS: tl.constexpr, SPLITS: tl.constexpr, EXACT: tl.constexpr,
                  BESIDE: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (strips / S, splits, row groups). y float32 [splits, RB, N]; a warp has a strip and a split.

    BESIDE: the launch before does not write x. That launch let this one start after its own wait, so x is complete,
    and the two run side by side; the wait at the end keeps what comes next behind both.
    """
    if BESIDE:
        gdc_launch(PDL)
    i_strip = tl.program_id(0) * S
    i_split = tl.program_id(1)
    o_row = tl.program_id(2) * (8 * RT)
    COUNT: tl.constexpr = NCH // SPLITS
    if EXACT:
        rows = o_row + tl.arange(0, 8 * RT)[None, None, :]
    else:
        rows = o_row + tl.arange(0, RT)[None, None, None, :, None] * 8 + tl.arange(0, 8)[None, :, None, None, None]
    rows = tl.minimum(rows, RB - 1)
    acc = strip_products(p_strips, i_strip, i_split * COUNT, p_x, rows, p_grid, FMT, S, 1, RT, NCH, STRIPS, COUNT, 1, 0,
                         EXACT, PDL and not BESIDE)  # fmt: skip
    used = tl.load(p_used)
    r = o_row + tl.arange(0, 8 * RT)[None, None, :]
    n = (i_strip + tl.arange(0, S)[:, None, None]) * 32 + tl.arange(0, 32)[None, :, None]
    acc = tl.where(r < used, acc, 0.0)
    o_y = i_split.to(tl.int64) * RB * N
    tl.store(p_y + o_y + r * N + n, acc, mask=(r < RB) & (n < N))
    if BESIDE:
        gdc_wait(PDL)
