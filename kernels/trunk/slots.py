"""What a model holds of its conversations, as compiled functions see it; needs no compiler."""

from __future__ import annotations

from typing import NamedTuple

from kernels.compiled.arrays import Array, Floats


class Slots(NamedTuple):
    """State of all slots and pages, see the model's own; `keys` and `values` are float32 or int16 (bf16).

    Attributes:
        conv: [linear layers, slots, taps - 1, channels].
        delta: [linear layers, slots, heads, dim, dim].
        ple: [slots, history, streams * hidden].
        index: [full layers, slots, block - 1, indexer dim].
        keys: [full layers and the draft layer, kv heads, pages, page tokens, dim].
        values: the same.
        pooled: [full layers, pages, blocks of a page, indexer dim].
    """

    conv: Floats
    delta: Floats
    ple: Floats
    index: Floats  # type: ignore[assignment]  # instead of the search that every tuple has
    keys: Array
    values: Array
    pooled: Floats
