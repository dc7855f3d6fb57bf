"""The Gated DeltaNet mixer of a window."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from appliance.model.qwen4exp.layers import GdnWeights
from appliance.model.qwen4exp.rows import Rows
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.stash import Stash
from appliance.model.qwen4exp.state import State
from kernels.gdn import causal_conv, delta_rule, gated_norm, unit_keys


def mix_linear(
    block: torch.Tensor,
    weights: GdnWeights,
    rows: Rows,
    *,
    spec: ModelSpec,
    state: State,
    stashes: Sequence[Stash],
    layer: int,
) -> torch.Tensor:
    """Runs the mixer; the state stays as it was, the stash gets what the commit needs.

    Args:
        block: float32 [rows, hidden].
        layer: index among the linear layers.

    Returns:
        float32 [rows, hidden].
    """
    heads, key_heads, dim = spec.gdn_value_heads, spec.gdn_key_heads, spec.gdn_head_dim
    channels, width = weights.conv.shape[1], heads * dim
    keys = 2 * key_heads * dim
    mixed = torch.mm(block, weights.mix)
    beta = mixed[:, -heads:].sigmoid()
    decay = torch.nn.functional.softplus(mixed[:, -2 * heads : -heads] + weights.bias).mul_(weights.rate)
    outs = []
    for batch, stash in zip(rows.batches, stashes, strict=True):
        buffer = stash.conv[layer]
        buffer[:, -batch.length :] = batch.pad(mixed[:, :channels])
        signal = causal_conv(buffer, weights.conv)
        both = signal[:, :, :keys].view(-1, batch.length, 2 * key_heads, dim)
        out, delta = delta_rule(
            unit_keys(both, key_heads=key_heads),
            signal[:, :, keys:].view(-1, batch.length, heads, dim),
            batch.pad(decay),
            batch.pad(beta),
            state.delta[layer].index_select(0, batch.slots),
        )
        stash.delta.append(delta)
        outs.append(batch.unpad(out))
    gate = mixed[:, channels : channels + width].view(-1, heads, dim)
    normed = gated_norm(rows.join(outs), gate, weights.norm, eps=spec.rms_eps)
    return torch.mm(normed.reshape(-1, width), weights.out)
