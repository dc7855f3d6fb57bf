"""The full-attention mixer of a window on the pages of its layer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from appliance.model.qwen4exp.rows import Rows
from appliance.model.qwen4exp.state import State
from kernels.attention.op import KvPages
from kernels.block.op import AttentionWeights, attention_block
from kernels.compiled.arrays import Array, Bytes, Floats
from kernels.hyper.op import ReadWeights
from kernels.qsa.op import IndexPages

Tap = Callable[[str, Array], None]


def mix_attention(
    x: Floats, read: ReadWeights, weights: AttentionWeights, rows: Rows, *, state: State, layer: int, eps: float
) -> tuple[Floats, Floats, Floats, Floats, Bytes]:
    """Runs the mixer on the streams x in place; writes keys, values and pooled keys to the pages.

    Args:
        x: float32 [rows, streams, hidden].
        read: of the streams.
        weights: of the layer; the draft layer's have no indexer.
        rows: of the window.
        state: of all slots.
        layer: index among the layers with keys and values.
        eps: of the norms.

    Returns:
        See `attention_block`.
    """
    pools = KvPages(_array(state.keys[layer]), _array(state.values[layer]))
    own = layer if weights.index_heads else 0
    index = IndexPages(state.pooled[own].numpy(), state.index[own].numpy())
    return attention_block(x, read, weights, rows.places, pools, index, np.float32(eps))


def _array(pool: torch.Tensor) -> Array:
    """A pool as the kernels see it: numpy has no bf16."""
    return pool.numpy() if pool.dtype == torch.float32 else pool.view(torch.int16).numpy()
