"""The n-gram embedding of a window: hash, gather, gate, convolve, add to the streams."""

from __future__ import annotations

import numpy as np
import torch

from appliance.model.qwen4exp.rows import Rows
from appliance.model.qwen4exp.spec import NgramSpec
from appliance.model.qwen4exp.stash import Stash
from appliance.model.qwen4exp.state import State
from appliance.model.qwen4exp.table import NgramTable
from kernels.compiled.arrays import Floats, Integers
from kernels.ngram.op import Hash, PleWeights, add_values, hash_rows


class NgramEmbedding:
    """Constants of the hash and the table."""

    def __init__(self, spec: NgramSpec, table: NgramTable, *, eps: float) -> None:
        self._width = spec.width
        self._table = table
        self._eps = eps
        self._hash = Hash(
            multipliers=np.array(spec.multipliers, dtype=np.int64),
            head_rows=np.array(spec.head_rows, dtype=np.int64),
            head_offsets=np.array(spec.head_offsets, dtype=np.int64),
            reset=spec.reset_token_id,
        )

    def numbers(self, rows: Rows, state: State) -> Integers:
        """Table rows of every row of the window, int64 [rows, heads]."""
        history = np.array([state.contexts[span.slot] for span in rows.spans], dtype=np.int64)
        return hash_rows(rows.tokens, history, rows.places.spans, self._hash)

    def values(self, numbers: Integers) -> Floats:
        """Gathers table rows: [rows, heads] -> float32 [rows, heads * row width]."""
        found: Floats = self._table.gather(torch.from_numpy(numbers.reshape(-1))).numpy()
        return found.reshape(numbers.shape[0], self._width)

    def add(self, x: Floats, found: Floats, weights: PleWeights, rows: Rows, state: State, stash: Stash) -> Floats:
        """Adds to the streams x [rows, streams, hidden] in place; returns what was added."""
        added, inputs = add_values(x, found, weights, state.ple.numpy(), rows.places.spans, np.float32(self._eps))
        stash.ple.append(inputs)
        return added
