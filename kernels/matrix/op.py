"""Products with matrices of codes: every row's result is the same whatever rows are beside it."""

from __future__ import annotations

import numpy as np

from kernels.compiled.arrays import Floats
from kernels.compiled.jit import compiled
from kernels.compiled.vector import TILE, multiply_codes, multiply_floats
from kernels.matrix.matrix import Matrix

# As many rows at a time as keep their sums in the registers of a processor that has 32 vectors of 16 floats.
_f1, _f2, _f3, _f4, _f5, _f6, _f7, _f8 = (multiply_floats(rows) for rows in range(1, 9))
_c1, _c2, _c3, _c4, _c5, _c6, _c7, _c8 = (multiply_codes(rows) for rows in range(1, 9))


@compiled
def multiply(x: Floats, matrix: Matrix) -> Floats:
    """`x` times the matrix.

    Args:
        x: float32 [rows, inputs].
        matrix: of as many inputs.

    Returns:
        float32 [rows, tiles * TILE]: columns beyond the matrix's own are zero.
    """
    tiles = matrix.codes.shape[0] + matrix.floats.shape[0]
    out = np.empty((x.shape[0], tiles * TILE), np.float32)
    multiply_tiles(x, matrix, 0, tiles, out)
    return out


@compiled
def multiply_tiles(x: Floats, matrix: Matrix, first: int, stop: int, out: Floats) -> None:
    """`out = x` times tiles first to stop: x [rows, inputs], out [rows, (stop - first) * TILE]."""
    inputs, coded, groups = x.shape[1], matrix.codes.shape[0], matrix.scales.shape[1]
    out[:, :] = np.float32(0)
    sums = np.empty((0, 0), np.float32)
    if matrix.lows.shape[0]:
        sums = _group_sums(x, groups)
    for tile in range(first, stop):
        column = (tile - first) * TILE
        if tile >= coded:
            _add_floats(x, matrix.floats, (tile - coded) * inputs * TILE, out, column)
            continue
        _add_codes(x, matrix, tile, out, column)
        if matrix.lows.shape[0]:
            _add_floats(sums, matrix.lows, tile * groups * TILE, out, column)


@compiled
def _group_sums(x: Floats, groups: int) -> Floats:
    """Sums of the inputs that share a scale, [rows, groups]: what the lows are multiplied with."""
    sums = np.zeros((x.shape[0], groups), np.float32)
    group = x.shape[1] // groups
    for r in range(x.shape[0]):
        for g in range(groups):
            for k in range(group):
                sums[r, g] += x[r, g * group + k]
    return sums


@compiled
def _add_floats(x: Floats, weights: Floats, at: int, out: Floats, column: int) -> None:
    """Adds x times a tile of float32 weights to the columns of out."""
    rows, step, wide = x.shape[0], x.shape[1], out.shape[1]
    for r in range(0, rows, 8):
        p, q, left = r * step, r * wide + column, rows - r
        if left >= 8:
            _f8(x, p, step, weights, at, out, q, wide, step)
        elif left == 7:
            _f7(x, p, step, weights, at, out, q, wide, step)
        elif left == 6:
            _f6(x, p, step, weights, at, out, q, wide, step)
        elif left == 5:
            _f5(x, p, step, weights, at, out, q, wide, step)
        elif left == 4:
            _f4(x, p, step, weights, at, out, q, wide, step)
        elif left == 3:
            _f3(x, p, step, weights, at, out, q, wide, step)
        elif left == 2:
            _f2(x, p, step, weights, at, out, q, wide, step)
        else:
            _f1(x, p, step, weights, at, out, q, wide, step)


@compiled
def _add_codes(x: Floats, matrix: Matrix, tile: int, out: Floats, column: int) -> None:
    """Adds x times a tile's codes and scales to the columns of out."""
    codes, scales = matrix.codes, matrix.scales
    rows, step, wide, groups = x.shape[0], x.shape[1], out.shape[1], scales.shape[1]
    group = step // groups
    at, scales_at = tile * step * TILE, tile * groups * TILE
    for r in range(0, rows, 8):
        p, q, left = r * step, r * wide + column, rows - r
        if left >= 8:
            _c8(x, p, step, codes, at, scales, scales_at, out, q, wide, groups, group)
        elif left == 7:
            _c7(x, p, step, codes, at, scales, scales_at, out, q, wide, groups, group)
        elif left == 6:
            _c6(x, p, step, codes, at, scales, scales_at, out, q, wide, groups, group)
        elif left == 5:
            _c5(x, p, step, codes, at, scales, scales_at, out, q, wide, groups, group)
        elif left == 4:
            _c4(x, p, step, codes, at, scales, scales_at, out, q, wide, groups, group)
        elif left == 3:
            _c3(x, p, step, codes, at, scales, scales_at, out, q, wide, groups, group)
        elif left == 2:
            _c2(x, p, step, codes, at, scales, scales_at, out, q, wide, groups, group)
        else:
            _c1(x, p, step, codes, at, scales, scales_at, out, q, wide, groups, group)
