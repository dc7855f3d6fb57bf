"""What a qwen4exp model takes in memory, in bytes, part by part; torch-free arithmetic over the spec."""

from __future__ import annotations

import math
from dataclasses import dataclass

from appliance.gguf.reader import TensorInfo
from appliance.model.qwen4exp.spec import ModelSpec

FLOAT = 4
OUTPUT_SLICE_ROWS = 1 << 14
SCORE_LIMIT = 1 << 24
NGRAM_TABLE = "per_layer_token_embd.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotBytes:
    """What conversations take: the arithmetic of `state.State`.

    Attributes:
        fixed: recurrent states and histories of one slot.
        page: keys, values and pooled indexer keys of one page, over all layers that keep them.
    """

    fixed: int
    page: int


def weight_bytes(spec: ModelSpec, *, unpack: str, draft: bool) -> int:
    """Weights in RAM, the n-gram table not counted.

    Args:
        spec: the model.
        unpack: "once" keeps float32; "per_use" keeps the stored blocks, which must stay in RAM to be quick.
        draft: whether the draft block is loaded.
    """
    tensors = _loaded(spec, draft=draft)
    if unpack == "per_use":
        return sum(tensor.byte_count for tensor in tensors.values())
    total = sum(_floats(tensor) for tensor in tensors.values())
    # A head that shares the embedding is kept twice: rows to look up, columns to multiply.
    return total if "output.weight" in tensors else total + _floats(tensors["token_embd.weight"])


def unpack_bytes(spec: ModelSpec, *, unpack: str, draft: bool) -> int:
    """Peak beside the weights while they are unpacked: at load ("once"), or in every window ("per_use")."""
    tensors = _loaded(spec, draft=draft)
    if unpack == "once":  # a layer's stacked experts, joined and then transposed, or the embedding with its copy
        return 2 * max((_floats(tensor) for tensor in tensors.values()), default=0)
    blocks: dict[str, int] = {}
    for name, tensor in tensors.items():
        if len(tensor.shape) < 3 and name.startswith("blk."):
            block = name.split(".")[1]
            blocks[block] = blocks.get(block, 0) + _floats(tensor)
    expert = 3 * spec.expert_ff * spec.hidden * FLOAT
    head = min(spec.vocabulary, OUTPUT_SLICE_ROWS) * spec.hidden * FLOAT
    return 2 * max([*blocks.values(), head]) + 2 * expert


def ngram_bytes(spec: ModelSpec) -> int:
    """Bytes of the n-gram table as stored; 0 without one."""
    table = spec.tensors.get(NGRAM_TABLE)
    return 0 if table is None else table.byte_count


def slot_bytes(spec: ModelSpec, *, page_tokens: int, draft: bool) -> SlotBytes:
    """State of one conversation in float32; section 6 of the model's description gives the sizes."""
    full = sum(spec.full_attention)
    linear = spec.trunk_layers - full
    recurrent = linear * spec.gdn_value_heads * spec.gdn_head_dim**2
    history = linear * (spec.conv_kernel - 1) * spec.gdn_qkv_width
    history += full * (spec.block_tokens - 1) * spec.indexer_dim
    if spec.ngram is not None:
        history += (spec.ngram.conv_kernel - 1) * spec.ngram.order * spec.wide
    keys_values = 2 * (full + int(draft)) * spec.kv_heads * page_tokens * spec.head_dim
    pooled = full * (page_tokens // spec.block_tokens) * spec.indexer_dim
    return SlotBytes(fixed=(recurrent + history) * FLOAT, page=(keys_values + pooled) * FLOAT)


def window_bytes(spec: ModelSpec, *, rows: int, logit_rows: int, slots: int, tokens: int) -> int:
    """Peak of one window: activations, one layer's attention at full contexts, logits with the sampler's copies.

    Args:
        spec: the model.
        rows: rows of the longest window.
        logit_rows: rows whose logits are wanted at once.
        slots: conversations in the window.
        tokens: context of each.
    """
    widest = max(spec.gdn_qkv_width, spec.query_heads * spec.head_dim * 2, spec.experts_used * spec.expert_ff * 2)
    activations = rows * (6 * spec.wide + 4 * widest)
    gathered = 2 * slots * tokens * spec.kv_heads * spec.head_dim
    # Scores, their softmax and the mask; queries go in slices so that no more than the limit is held of each.
    scores = 3 * min(SCORE_LIMIT, rows * spec.query_heads * tokens)
    logits = 4 * logit_rows * spec.vocabulary
    return (activations + gathered + scores + logits) * FLOAT


def _loaded(spec: ModelSpec, *, draft: bool) -> dict[str, TensorInfo]:
    """Tensors that loading reads. The draft layer attends to everything, so its indexer stays in the file."""
    block = f"blk.{spec.trunk_layers}."
    return {
        name: tensor
        for name, tensor in spec.tensors.items()
        if name != NGRAM_TABLE and (not name.startswith(block) or (draft and ".indexer." not in name))
    }


def _floats(tensor: TensorInfo) -> int:
    return math.prod(tensor.shape) * FLOAT
