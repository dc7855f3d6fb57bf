"""What windows take on a card beside weights and state, in bytes; torch-free arithmetic over the spec.

Products are split between programs, and every part has a result of its own: how many there are is what `kernels.linear`
chooses for the shape. A test builds the real model's buffers and holds them to this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from appliance.model.qwen4exp.device_footprint import MOST_SPLITS, WINDOW_ROWS
from appliance.model.qwen4exp.footprint import FLOAT
from appliance.model.qwen4exp.spec import ModelSpec

HALF: Final = 2
BUCKETS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, WINDOW_ROWS)
"""Rows of the windows that are recorded; each has some buffers of its own."""
ENTRY_ROWS: Final = 8
HISTOGRAM_BYTES: Final = 32 << 10
"""Of a row's selection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAsk:
    """What the windows of a card do.

    Attributes:
        tokens: context of one conversation.
        slots: conversations at once.
        head: whether logits are made here.
        drafts: whether the draft layer is here.
        ngram: whether the layer with n-grams is here.
    """

    tokens: int
    slots: int
    head: bool
    drafts: bool
    ngram: bool


def buffer_bytes(spec: ModelSpec, ask: WindowAsk) -> int:
    """Buffers of all windows: the largest parts are shared, the others are there for each bucket."""
    chains = sum(rows for rows in BUCKETS if rows <= _bucket(ask.slots)) if ask.drafts else 0
    own = sum(BUCKETS) * (_mixing(spec) + ask.drafts * _entry(spec) + ask.ngram * _ngrams(spec))
    return WINDOW_ROWS * _shared(spec, ask) + own + chains * (_mixing(spec) + 2 * spec.wide * FLOAT)


def _shared(spec: ModelSpec, ask: WindowAsk) -> int:
    """Of a row."""
    heads, dim, hidden = spec.query_heads, spec.head_dim, spec.hidden
    keys = 2 * heads * dim + 2 * spec.kv_heads * dim
    linear = spec.gdn_qkv_width + spec.gdn_value_width
    products = linear * splits(linear, hidden) + keys * splits(keys, hidden)
    products += hidden * splits(hidden, max(spec.gdn_value_width, heads * dim))
    index = (spec.indexer_heads + 1) * spec.indexer_dim
    products += index * splits(index, hidden)
    router = (spec.experts + 64) * splits(spec.experts + 64, hidden)
    # Logits, and the sampler's room for as many numbers.
    logits = spec.vocabulary * (splits(spec.vocabulary, hidden) + 1) * ask.head
    attention = heads * (MOST_SPLITS * (dim + 2) + 2 * dim) + spec.gdn_value_width
    selection = 3 * (ask.tokens // spec.block_tokens + 64) + 2 * spec.indexer_budget // spec.block_tokens
    streams = (1 + ask.drafts) * spec.wide + 2 * hidden
    experts = (spec.experts_used + 1) * hidden
    return (products + router + logits + attention + selection + streams + experts) * FLOAT + HISTOGRAM_BYTES


def _mixing(spec: ModelSpec) -> int:
    """Of a row of every bucket and of every chain: hyper-connections, linear layers, experts."""
    inner = max(math.ceil(width / 128) * 128 for width in (spec.expert_ff, spec.shared_ff))
    entries = (spec.experts_used + 1 / ENTRY_ROWS) * ENTRY_ROWS * inner
    return math.ceil(entries) * HALF + (spec.wide + spec.gdn_qkv_width) * FLOAT


def _entry(spec: ModelSpec) -> int:
    """Of a row of every bucket where drafts begin."""
    both = (spec.streams + 1) * spec.hidden
    return both * (splits(spec.hidden, spec.hidden) * FLOAT + HALF)


def _ngrams(spec: ModelSpec) -> int:
    """Of a row of every bucket where n-grams are added."""
    if spec.ngram is None:
        return 0
    width = len(spec.ngram.head_rows) * spec.ngram.row_width
    parts = spec.wide * (splits(spec.wide, width) + 2) + spec.hidden * splits(spec.hidden, width)
    return parts * FLOAT + width * HALF


def _bucket(slots: int) -> int:
    return next((rows for rows in BUCKETS if rows >= slots), WINDOW_ROWS)


def splits(rows: int, columns: int) -> int:
    """Partial sums of a product; see `kernels.linear.splits`."""
    strips, chunks = math.ceil(rows / 32), math.ceil(columns / 128)
    divisors = [count for count in range(1, min(chunks, 12) + 1) if chunks % count == 0]
    return next((count for count in divisors if count * strips >= 1500), divisors[-1])
