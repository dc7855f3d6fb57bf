"""The likeliest token of each row of logits, compiled for the CPU."""

from __future__ import annotations

import numpy as np

from kernels.compiled.arrays import Array, Floats, Integers
from kernels.compiled.jit import compiled
from kernels.compiled.largest import largest


@compiled
def likeliest(logits: Floats, columns: int) -> tuple[Integers, Floats, Array]:
    """What greedy rows draw.

    Args:
        logits: float32 [rows, at least columns].
        columns: that count.

    Returns:
        The first of the largest logits, int64 [rows]; its softmax, float32 [rows]; and bool [rows]: whether the sum of
        a row's logits is a finite number. Where it is none the others mean nothing, but the id is one.
    """
    rows, step = logits.shape[0], logits.strides[0] // logits.itemsize
    ids, shares, sums = np.zeros(rows, np.int64), np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    for r in range(rows):
        largest(logits, r * step, columns, ids, shares, sums, r)
    return ids, shares, sums - sums == np.float32(0)
