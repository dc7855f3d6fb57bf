"""Products with matrices of codes: every row's result is the same whatever rows are beside it."""

from __future__ import annotations

import numpy as np

from kernels.compiled.arrays import Floats
from kernels.compiled.jit import compiled, compiled_sum
from kernels.compiled.product import MOST_ROWS, multiply_codes, multiply_floats
from kernels.compiled.vector import TILE
from kernels.matrix.matrix import Matrix


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
    multiply_tiles(x, group_sums(x, matrix), matrix, 0, tiles, out)
    return out


@compiled
def group_sums(x: Floats, matrix: Matrix) -> Floats:
    """Sums of the inputs that share a scale, [rows, groups]: what the lows are multiplied with; [0, 0] without lows."""
    if matrix.lows.shape[0] == 0:
        return np.empty((0, 0), np.float32)
    groups = matrix.scales.shape[1]
    sums = np.empty((x.shape[0], groups), np.float32)
    group = x.shape[1] // groups
    for r in range(x.shape[0]):
        for g in range(groups):
            sums[r, g] = _sum(x, r, g * group, group)
    return sums


@compiled_sum
def _sum(x: Floats, row: int, first: int, count: int) -> np.float32:
    total = np.float32(0)
    for k in range(count):
        total += x[row, first + k]
    return total


@compiled
def multiply_tiles(x: Floats, sums: Floats, matrix: Matrix, first: int, stop: int, out: Floats) -> None:
    """`out = x` times tiles first to stop.

    Args:
        x: float32 [rows, inputs].
        sums: of the rows, see `group_sums`.
        matrix: of as many inputs.
        first: tile.
        stop: past the last tile.
        out: float32 [rows, (stop - first) * TILE].
    """
    coded, groups, inputs = matrix.codes.shape[0], matrix.scales.shape[1], x.shape[1]
    middle = max(first, min(stop, coded))
    at, scales_at, floats_at = first * inputs * TILE, first * groups * TILE, (middle - coded) * inputs * TILE
    wide, column = out.shape[1], (middle - first) * TILE
    for r in range(0, x.shape[0], MOST_ROWS):
        rows, p, q = min(MOST_ROWS, x.shape[0] - r), r * inputs, r * wide
        codes, scales, lows, floats = matrix.codes, matrix.scales, matrix.lows, matrix.floats
        if middle > first:
            t, lowered, tiles, group = r * groups, lows.shape[0], middle - first, inputs // groups
            multiply_codes(
                matrix.codes_kernel,
                x,
                p,
                inputs,
                rows,
                codes,
                at,
                scales,
                lows,
                scales_at,
                sums,
                t,
                lowered,
                out,
                q,
                wide,
                tiles,
                groups,
                group,
            )
        if stop > middle:
            multiply_floats(
                matrix.floats_kernel,
                x,
                p,
                inputs,
                rows,
                floats,
                floats_at,
                out,
                q + column,
                wide,
                stop - middle,
                inputs,
            )
