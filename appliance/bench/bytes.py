"""Bytes that a window has to read, by the model's shape and its routing; torch-free."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from appliance.model.qwen4exp.device_footprint import dense_bytes, expert_bytes, matrix_bytes, slot_bytes
from appliance.model.qwen4exp.footprint import NGRAM_TABLE
from appliance.model.qwen4exp.spec import ModelSpec

_PAGE_TOKENS = 64

Distinct = Callable[[int], float]
"""Experts of a layer that a number of rows is expected to touch."""


def distinct_experts(experts: int, used: int, rows: float) -> float:
    """Experts that uniform routing of so many rows is expected to touch in one layer."""
    missed: float = (1.0 - used / experts) ** rows
    return experts * (1.0 - missed)


def uniform(spec: ModelSpec) -> Distinct:
    """Every expert as likely as every other."""
    return partial(distinct_experts, spec.experts, spec.experts_used)


def window_bytes_read(
    spec: ModelSpec, *, context: int, kv_type: str, rows: int, sequences: int, distinct: Distinct | None = None
) -> int:
    """On a card: dense weights once, each touched expert once, states of the sequences, selected keys and values.

    Args:
        spec: the model.
        context: tokens before the window.
        kv_type: storage of keys and values.
        rows: of the window.
        sequences: they belong to.
        distinct: how routing spreads; uniform by default.
    """
    embedding = spec.tensors["token_embd.weight"].byte_count
    one = expert_bytes(spec, draft=False).layers
    touched = (distinct or uniform(spec))(rows)
    slot = slot_bytes(spec, page_tokens=_PAGE_TOKENS, kv_type=kv_type, draft=False)
    full = sum(spec.full_attention)
    pooled = full * (context // spec.block_tokens) * spec.indexer_dim * 2
    pooled_page = full * (_PAGE_TOKENS // spec.block_tokens) * spec.indexer_dim * (4 if kv_type == "f32" else 2)
    selected = min(context, spec.indexer_budget) * (slot.page - pooled_page) // _PAGE_TOKENS
    total = dense_bytes(spec, draft=False) - embedding + int(sum(one) * touched)
    return total + sequences * (_states(spec) + pooled) + rows * selected


def draft_bytes_read(
    spec: ModelSpec,
    *,
    context: int,
    kv_type: str,
    rows: int,
    sequences: int,
    steps: int,
    distinct: Distinct | None = None,
) -> int:
    """On a card: the draft layer over a window's rows, then over one row a sequence for each further draft.

    Every pass reads the draft layer, its touched experts and the whole context's keys and values; every draft the head.
    """
    distinct = distinct or uniform(spec)
    layer = dense_bytes(spec, draft=True) - dense_bytes(spec, draft=False)
    expert = expert_bytes(spec, draft=True).layers[-1]
    pages = [slot_bytes(spec, page_tokens=_PAGE_TOKENS, kv_type=kv_type, draft=draft).page for draft in (True, False)]
    keys = sequences * context * (pages[0] - pages[1]) // _PAGE_TOKENS
    head = matrix_bytes(spec.tensors.get("output.weight", spec.tensors["token_embd.weight"]))
    passes = [rows] + [sequences] * max(0, steps - 1)
    return sum(layer + keys + int(expert * distinct(count)) for count in passes) + steps * head


def cpu_bytes_read(spec: ModelSpec, *, weight_bytes: int, rows: int, sequences: int, steps: int) -> int:
    """On the CPU: the share of the weights that a window and its drafts touch, in whatever form they are held.

    Args:
        spec: the model.
        weight_bytes: of all loaded weights, as the placement has them.
        rows: of the window.
        sequences: they belong to.
        steps: drafts of each after it.
    """
    distinct, draft = uniform(spec), f"blk.{spec.trunk_layers}."
    held = touched = 0.0
    for name, tensor in spec.tensors.items():
        if name == NGRAM_TABLE:
            continue
        count = math.prod(tensor.shape)
        held += count
        passes = ([rows] + [sequences] * max(0, steps - 1) if steps else []) if name.startswith(draft) else [rows]
        if name == "output.weight" or (name == "token_embd.weight" and "output.weight" not in spec.tensors):
            touched += count * (1 + steps)
        elif "_exps." in name:
            touched += sum(count * distinct(one) / spec.experts for one in passes)
        elif name != "token_embd.weight":
            touched += count * len(passes)
    return int(weight_bytes * touched / held) + sequences * _states(spec)


def _states(spec: ModelSpec) -> int:
    """Recurrent states of one sequence, read and written."""
    linear = spec.trunk_layers - sum(spec.full_attention)
    return 2 * linear * spec.gdn_value_heads * spec.gdn_head_dim**2 * 4
