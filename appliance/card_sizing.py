"""Owns the arithmetic of a placement on one card: what the card holds, and what stays in RAM beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from appliance.model.qwen4exp.device_footprint import (
    MOST_SPLITS,
    WINDOW_ROWS,
    dense_bytes,
    expert_bytes,
    host_expert_bytes,
    slot_bytes,
)
from appliance.model.qwen4exp.footprint import FLOAT, ngram_bytes
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.rig.cards import Card
from appliance.rig.schema import Rig
from appliance.rig.size import GIB, MIB, format_size

# CUDA context, compiled kernels and graphs, measured beside a model.
CARD_RUNTIME_BYTES = 900 * MIB
# Blocks on their way into planes: a slice of weights with the packer's temporaries.
PACKING_BYTES = 768 * MIB
STAGING_BYTES = 192 * MIB
# Driver and runtime in this process's RAM.
HOST_RUNTIME_BYTES = GIB
SHORT_CONTEXT = 8192
RULE_BYTES = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSizes:
    """Parts in bytes.

    Attributes:
        dense, states, pages, buffers, rules, ngram, runtime: on the card.
        experts: on the card: what is left of the budget, at most all of them.
        all_experts: of the model, as the card would hold them.
        budget: what the card has for this process.
        kv_type: storage of keys and values.
        host_experts: in RAM.
    """

    dense: int
    states: int
    pages: int
    buffers: int
    rules: int
    ngram: int
    runtime: int
    experts: int
    all_experts: int
    budget: int
    kv_type: str
    host_experts: int

    @property
    def fixed(self) -> int:
        """Everything but experts."""
        return self.dense + self.states + self.pages + self.buffers + self.rules + self.ngram + self.runtime

    def lines(self) -> list[tuple[str, int, str]]:
        """(name, bytes, note) of every part on the card."""
        share = self.experts / self.all_experts if self.all_experts else 1.0
        return [
            ("card: weights", self.dense, "in planes, embedding as stored"),
            ("card: experts", self.experts, f"{share:.1%} of {format_size(self.all_experts)}"),
            ("card: states", self.states, "recurrent states of all slots"),
            ("card: KV pages", self.pages, self.kv_type),
            ("card: n-gram table", self.ngram, ""),
            ("card: buffers", self.buffers + self.rules, f"windows of up to {WINDOW_ROWS} rows, sampling rules"),
            ("card: runtime", self.runtime, "CUDA, kernels, graphs"),
        ]


def kv_type(rig: Rig, *, tokens: int) -> str:
    """Storage of keys and values on a card."""
    if rig.context.kv != "auto":
        return rig.context.kv
    return "bf16" if tokens <= SHORT_CONTEXT else "int8"


def card_sizes(
    spec: ModelSpec,
    rig: Rig,
    card: Card,
    *,
    tokens: int,
    slots: int,
    pages: int,
    page_tokens: int,
    draft: bool,
    home: str,
) -> CardSizes:
    """Prices one shape on a card; negative experts when it does not fit."""
    storage = kv_type(rig, tokens=tokens)
    slot = slot_bytes(spec, page_tokens=page_tokens, kv_type=storage, draft=draft)
    experts = expert_bytes(spec, draft=draft)
    reserve = rig.cards.vram_reserve
    kept = reserve if isinstance(reserve, int) else reserve[0]
    sizes = {
        "dense": dense_bytes(spec, draft=draft),
        "states": (slots + 1) * slot.fixed,
        "pages": (pages + 1) * slot.page,
        "buffers": max(PACKING_BYTES, buffer_bytes(spec, tokens=tokens)),
        "rules": (slots + 1) * spec.vocabulary * RULE_BYTES,
        "ngram": ngram_bytes(spec) if home == "vram" else 0,
        "runtime": CARD_RUNTIME_BYTES,
    }
    budget = (card.free_bytes if card.free_bytes is not None else card.vram_bytes or 0) - kept
    left = budget - sum(sizes.values())
    wanted = experts.total
    cache = rig.experts.cache
    if cache != "auto":
        wanted = min(wanted, cache if isinstance(cache, int) else cache[0])
    pool = wanted if cache != "auto" else max(0, min(wanted, left))
    share = max(0.0, min(1.0, pool / experts.total)) if experts.total else 1.0
    return CardSizes(
        **sizes,
        experts=pool,
        all_experts=experts.total,
        budget=budget,
        kv_type=storage,
        host_experts=math.ceil(host_expert_bytes(spec, draft=draft) * (1.0 - share)),
    )


def buffer_bytes(spec: ModelSpec, *, tokens: int) -> int:
    """What windows of the largest bucket need beside weights and states."""
    rows = WINDOW_ROWS
    logits = 2 * spec.vocabulary
    selection = 3 * (tokens // spec.block_tokens + 64)
    attention = spec.query_heads * MOST_SPLITS * spec.head_dim
    products = MOST_SPLITS // 4 * (spec.gdn_qkv_width + spec.gdn_value_width)
    experts = (spec.experts_used + 1) * (spec.hidden + 8 * max(128, spec.expert_ff))
    streams = 8 * spec.wide
    # Smaller buckets share the largest parts and have some of their own.
    return 2 * rows * (logits + selection + attention + products + experts + streams) * FLOAT
