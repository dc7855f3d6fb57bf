"""The full-attention mixer of a window on the pages of its layer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from appliance.model.qwen4exp.layers import LayerWeights
from appliance.model.qwen4exp.rows import Rows
from appliance.model.qwen4exp.state import State
from kernels.attention.op import KvPages
from kernels.block.op import AttentionWeights, attention_block
from kernels.compiled.arrays import Array, Bytes, Floats
from kernels.qsa.op import IndexPages

Tap = Callable[[str, Array], None]


def mix_attention(
    x: Floats, layer: LayerWeights, rows: Rows, *, state: State, index: int, eps: float
) -> tuple[Floats, Floats, Floats, Floats, Bytes]:
    """Runs the mixer on the streams x in place; writes keys, values and pooled keys to the pages.

    Args:
        x: float32 [rows, streams, hidden].
        layer: its weights; the draft layer's have no indexer.
        rows: of the window.
        state: of all slots.
        index: of the layer among those with keys and values.
        eps: of the norms.

    Returns:
        See `attention_block`.
    """
    assert isinstance(layer.mixer, AttentionWeights)
    slots = state.arrays
    own = index if layer.mixer.index_heads else 0
    pools, pages = KvPages(slots.keys[index], slots.values[index]), IndexPages(slots.pooled[own], slots.index[own])
    return attention_block(x, layer.mixer_record, rows.places, pools, pages, np.float32(eps))
