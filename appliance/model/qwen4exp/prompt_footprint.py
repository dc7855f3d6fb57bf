"""What prompt chunks take on a card beside weights and state, in bytes; torch-free arithmetic over the spec."""

from __future__ import annotations

import math
from typing import Final

from appliance.model.qwen4exp.chunk_shapes import RECORDED_ROWS
from appliance.model.qwen4exp.footprint import FLOAT
from appliance.model.qwen4exp.handoff_footprint import leaving_bytes
from appliance.model.qwen4exp.spec import ModelSpec

PIECE_EXPERTS: Final = 64
"""Experts that land together on their way to a chunk."""
AHEAD_LAYERS: Final = 2
MOST_LANDING: Final = 8
"""Pieces on the card at once: those of two layers (one lands while the other computes), but no more than this."""

CHUNK_ROWS: Final = (8192, 4096, 2048, 1024, 512)
CHUNK_SHARE: Final = 1 / 16
"""Of a card's memory, at most, for the rows of a chunk, and for those that are on their way to the next card."""

STAGED_ROWS: Final = 2048
"""Of the longest recorded chunk of a prompt that passes several cards: while one computes a chunk, the next one has the
chunk before. A shorter one would read every matrix and nearly all experts for too few rows."""

LINE_BYTES: Final = 1 << 28
SCORE_VALUES: Final = 1 << 25
LIST_BLOCKS: Final = 4096
"""Bounds of what attention holds of a long text, as `kernels.attention.prompt` and `kernels.qsa.prompt` have them."""
LIBRARY_BYTES: Final = 32 << 20
"""Working memory of the library's products on the stream where chunks are recorded."""

HALF: Final = 2
SLICE_ROWS: Final = 2048
"""Rows that streams and recurrent states are computed for together."""
DELTA_ROWS: Final = 64


def landing_pieces(pieces: int, *, layers: int) -> int:
    """Landing places of a stage with so many pieces in all its layers."""
    return min(pieces, MOST_LANDING, AHEAD_LAYERS * math.ceil(pieces / layers))


def landing_bytes(*, experts: int, expert_bytes: int) -> int:
    """The landing places of layers that have so many experts in RAM.

    Args:
        experts: of a layer, in RAM.
        expert_bytes: of the largest one as RAM holds it.
    """
    pieces = math.ceil(experts / PIECE_EXPERTS)
    return min(MOST_LANDING, AHEAD_LAYERS * pieces) * PIECE_EXPERTS * expert_bytes


def room_bytes(spec: ModelSpec) -> int:
    """The largest matrix as fp16, those that are joined counted together."""
    attention = 2 * spec.query_heads * spec.head_dim + 2 * spec.kv_heads * spec.head_dim
    index = (spec.indexer_heads + 1) * spec.indexer_dim
    linear = spec.gdn_qkv_width + spec.gdn_value_width + 2 * spec.gdn_value_heads
    # A float32 matrix (the router) is unpacked in two halves.
    rows = max(linear, attention + index, 2 * (spec.experts + 64), 2 * (spec.shared_ff + 127))
    sizes = [rows * spec.hidden, spec.gdn_value_width * spec.hidden, spec.wide * spec.low_rank, 2 * spec.hidden**2]
    sizes.append(spec.query_heads * spec.head_dim * spec.hidden)
    if spec.ngram is not None:
        sizes.append(spec.wide * len(spec.ngram.head_rows) * spec.ngram.row_width)
    return max(sizes) * HALF


def text_bytes(spec: ModelSpec, *, rows: int, tokens: int) -> int:
    """What attention holds of a text: keys and values in order, or before that the scores of the rows' blocks."""
    head, blocks = 2 * tokens * spec.head_dim * HALF, tokens // spec.block_tokens
    line = max(1, min(spec.kv_heads, LINE_BYTES // max(1, head))) * head
    return max(line, min(rows * blocks, SCORE_VALUES) * FLOAT * (2 if blocks > LIST_BLOCKS else 1))


def recorded_rows(chunk_rows: int) -> tuple[int, ...]:
    """Sizes of recorded chunks where none is longer than `chunk_rows`."""
    return tuple(rows for rows in RECORDED_ROWS if rows <= chunk_rows)


def kept_bytes(spec: ModelSpec, *, rows: int) -> int:
    """Tokens and streams of recorded chunks of up to so many rows, which have a place of their own."""
    return rows * (spec.wide + 1) * FLOAT


def graph_bytes(spec: ModelSpec, *, rows: int, tokens: int) -> int:
    """What lies between the launches of recorded chunks of up to so many rows: all of a stage share it."""
    streams = rows * spec.wide * FLOAT
    return chunk_bytes(spec, rows=rows, tokens=tokens) - streams + LIBRARY_BYTES if rows else 0


def chunk_bytes(spec: ModelSpec, *, rows: int, tokens: int = 0) -> int:
    """What is alive at once while a chunk of so many rows of a text of up to `tokens` runs."""
    hidden, heads = spec.hidden, spec.query_heads * spec.head_dim
    kept = spec.wide * FLOAT + (spec.experts_used + 1) * hidden * HALF + 2 * hidden * HALF
    linear = (spec.gdn_qkv_width + 2 * spec.gdn_value_width) * HALF + 4 * spec.gdn_value_heads * FLOAT
    attention = (4 * heads + 2 * spec.kv_heads * spec.head_dim + 2 * spec.indexer_heads * spec.indexer_dim) * HALF
    inner = spec.experts_used * math.ceil(spec.expert_ff / 128) * 128
    experts = (inner + hidden + 4 * spec.shared_ff) * HALF + (spec.experts + 64 + 4 * spec.experts_used) * FLOAT
    some = min(rows, SLICE_ROWS)
    streams = some * spec.wide * 3 * HALF
    states = some // DELTA_ROWS * spec.gdn_value_heads * spec.gdn_head_dim**2 * HALF
    delta = some * (2 * spec.gdn_key_heads + 3 * spec.gdn_value_heads) * spec.gdn_head_dim * HALF + states
    text = text_bytes(spec, rows=rows, tokens=tokens)
    return rows * (kept + max(linear, attention, experts)) + max(streams, delta, text)


def chunk_rows(spec: ModelSpec, *, tokens: int, card_bytes: int, stages: int = 1) -> int:
    """Rows of the longest chunk: many read a matrix and an expert once for more of them; 0 where a card is too small.

    Args:
        spec: the model.
        tokens: context of one conversation, the rows it can have.
        card_bytes: of the smallest card.
        stages: cards that a chunk passes through.
    """
    for rows in CHUNK_ROWS:
        if chunk_bytes(spec, rows=rows) + leaving_bytes(spec, rows=rows, stages=stages) <= card_bytes * CHUNK_SHARE:
            return min(rows, tokens)
    return 0
