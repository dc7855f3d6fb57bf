"""Bytes that a window has to read, by the model's shape and uniform routing."""

from __future__ import annotations

from appliance.model.qwen4exp.device_footprint import dense_bytes, expert_bytes, slot_bytes
from appliance.model.qwen4exp.spec import ModelSpec


def distinct_experts(experts: int, used: int, rows: int) -> float:
    """Experts that uniform routing of so many rows is expected to touch in one layer."""
    return experts * (1.0 - (1.0 - used / experts) ** rows)


def window_bytes_read(spec: ModelSpec, *, context: int, kv_type: str, rows: int, sequences: int) -> int:
    """Dense weights once, each touched expert once, states of the sequences, selected keys and values of each row."""
    embedding = spec.tensors["token_embd.weight"].byte_count
    one = expert_bytes(spec, draft=False).layers
    touched = distinct_experts(spec.experts, spec.experts_used, rows)
    slot = slot_bytes(spec, page_tokens=64, kv_type=kv_type, draft=False)
    linear = spec.trunk_layers - sum(spec.full_attention)
    delta = 2 * linear * spec.gdn_value_heads * spec.gdn_head_dim**2 * 4
    full = sum(spec.full_attention)
    pooled = full * (context // spec.block_tokens) * spec.indexer_dim * 2
    pool_page = slot.page - full * (64 // spec.block_tokens) * spec.indexer_dim * (4 if kv_type == "f32" else 2)
    selected = min(context, spec.indexer_budget) * pool_page // 64
    total = dense_bytes(spec, draft=False) - embedding + int(sum(one) * touched)
    return total + sequences * (delta + pooled) + rows * selected
