"""The full-attention mixer of a window: pages, indexer, selection."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from appliance.model.qwen4exp.layers import AttentionWeights
from appliance.model.qwen4exp.rows import Context, Rows
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.stash import Stash
from appliance.model.qwen4exp.state import State
from kernels.attention import attend, causal_mask, gather_pages
from kernels.norm import rms_norm
from kernels.qsa import pool_keys, select_blocks, selection_mask
from kernels.rope import rotate_

Tap = Callable[[str, torch.Tensor], None]

# Attention scores held at once: a prompt chunk over a long context goes in slices of its queries.
SCORE_LIMIT = 1 << 24


def mix_attention(
    block: torch.Tensor,
    weights: AttentionWeights,
    rows: Rows,
    *,
    spec: ModelSpec,
    state: State,
    stashes: Sequence[Stash],
    layer: int,
    tap: Tap | None = None,
) -> torch.Tensor:
    """Runs the mixer; writes keys, values and pooled keys to the pages.

    Args:
        block: float32 [rows, hidden].
        stashes: of the batches, for the raw indexer keys; empty for the draft layer, which has no indexer.
        layer: index among the layers with keys and values.
        tap: for tests: gets the mask of sparse contexts.

    Returns:
        float32 [rows, hidden].
    """
    heads, kv_heads, dim = spec.query_heads, spec.kv_heads, spec.head_dim
    values_at = (heads + kv_heads) * dim
    gates_at = values_at + kv_heads * dim
    mixed = torch.mm(block, weights.mix)
    normed = rms_norm(mixed[:, :values_at].view(-1, heads + kv_heads, dim), weights.norm, eps=spec.rms_eps)
    rotate_(normed, rows.cos, rows.sin)
    value = mixed[:, values_at:gates_at].view(-1, kv_heads, dim)
    for pool, new in ((state.keys[layer], normed[:, heads:]), (state.values[layer], value)):
        pool.view(kv_heads, -1, dim).index_copy_(1, rows.kv_index, new.transpose(0, 1).to(pool.dtype))
    wanted = None
    if stashes:
        wanted = _index(mixed[:, gates_at + heads * dim :], weights, rows, spec, state, stashes, layer)
    outs = []
    for batch in rows.batches:
        query = batch.pad(normed[:, :heads])
        index_query = None if wanted is None else batch.pad(wanted)
        parts = [_attend_context(c, query, index_query, spec, state, layer, tap) for c in batch.contexts]
        outs.append(batch.unpad(parts[0] if len(parts) == 1 else torch.cat(parts)))
    gate = mixed[:, gates_at : gates_at + heads * dim].sigmoid()
    return torch.mm(rows.join(outs).flatten(1).mul_(gate), weights.out)


def _index(
    mixed: torch.Tensor,
    weights: AttentionWeights,
    rows: Rows,
    spec: ModelSpec,
    state: State,
    stashes: Sequence[Stash],
    layer: int,
) -> torch.Tensor | None:
    """Pools the blocks that the window completes; returns the indexer's queries if some row has a choice to make."""
    width = spec.indexer_heads * spec.indexer_dim
    for batch, stash in zip(rows.batches, stashes, strict=True):
        buffer = stash.index[layer]
        buffer[:, -batch.length :] = batch.pad(mixed[:, width:])
        blocks = batch.blocks
        if blocks is None:
            continue
        pooled = pool_keys(
            buffer.flatten(0, 1), blocks.rows, weights.index_key_norm, blocks.cos, blocks.sin, eps=spec.rms_eps
        )
        state.pooled[layer].flatten(0, 1).index_copy_(0, blocks.targets, pooled)
    if not any(context.sparse for batch in rows.batches for context in batch.contexts):
        return None
    query = mixed[:, :width].view(-1, spec.indexer_heads, spec.indexer_dim)
    return rotate_(rms_norm(query, weights.index_query_norm, eps=spec.rms_eps), rows.cos, rows.sin)


def _attend_context(
    context: Context,
    query: torch.Tensor,
    index_query: torch.Tensor | None,
    spec: ModelSpec,
    state: State,
    layer: int,
    tap: Tap | None,
) -> torch.Tensor:
    """Attention of neighbouring spans: [spans, length, heads, dim]."""
    own = slice(context.first, context.stop)
    query = query[own]
    keys = gather_pages(state.keys[layer], context.pages)
    values = gather_pages(state.values[layer], context.pages)
    spans, length, heads, _ = query.shape
    step = max(1, SCORE_LIMIT // (spans * heads * context.tokens))
    if not context.sparse and step >= length:
        return attend(query, keys, values, context.mask)
    pooled = None
    if context.sparse:
        pooled = gather_pages(state.pooled[layer].unsqueeze(0), context.pages)[0]
    parts = []
    for first in range(0, length, step):
        rows = slice(first, first + step)
        positions = context.positions[:, rows]
        if pooled is None or index_query is None:
            mask = causal_mask(positions, context=context.tokens)
        else:
            mask = _selected(index_query[own, rows], pooled, positions, spec)
        if tap is not None and context.sparse:
            tap(f"qsa{layer}", mask == 0)
        parts.append(attend(query[:, rows], keys, values, mask))
    return torch.cat(parts, 1)


def _selected(query: torch.Tensor, pooled: torch.Tensor, positions: torch.Tensor, spec: ModelSpec) -> torch.Tensor:
    block = spec.block_tokens
    complete = (positions + 1) // block
    chosen = select_blocks(query, pooled, complete, budget_blocks=spec.indexer_budget // block)
    return selection_mask(chosen, positions, block_tokens=block)
