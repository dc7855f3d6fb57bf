"""The n-gram embedding of a window: hash, gather, gate, convolve, add to the streams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from appliance.model.qwen4exp.rows import Rows, SpanRows
from appliance.model.qwen4exp.spec import NgramSpec
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

    def look_up(self, spans: Sequence[SpanRows], state: State) -> tuple[Integers, Floats]:
        """Table rows of every row of the spans, int64 [rows, heads], and what they hold, float32 [rows, width]."""
        history = np.array([state.contexts[span.slot] for span in spans], dtype=np.int64)
        table, first = np.zeros((len(spans), 4), dtype=np.int64), 0
        for number, span in enumerate(spans):
            table[number, 1:3] = first, span.count
            first += span.count
        tokens = np.array([token for span in spans for token in span.tokens], dtype=np.int64)
        numbers = hash_rows(tokens, history, table, self._hash)
        found: Floats = self._table.gather(torch.from_numpy(numbers.reshape(-1))).numpy()
        return numbers, found.reshape(first, self._width)

    def add(self, x: Floats, found: Floats, weights: PleWeights, rows: Rows, state: State) -> tuple[Floats, Floats]:
        """Adds to the streams x [rows, streams, hidden] in place; what was added, and inputs of the convolution."""
        return add_values(x, found, weights, state.arrays.ple, rows.places.spans, np.float32(self._eps))
