"""What a qwen4exp model takes in memory, in bytes, part by part; torch-free arithmetic over the spec."""

from __future__ import annotations

import math
from dataclasses import dataclass

from appliance.gguf.reader import TensorInfo
from appliance.model.qwen4exp.spec import ModelSpec

FLOAT = 4
OUTPUT_SLICE_ROWS = 1 << 14
# Temporaries of kernels.matrix.part: 40 bytes for each of the weights it takes apart at a time.
SLICE_BYTES = 40 << 18
# How kernels.matrix keeps each type: inputs that share a scale, where it is not 32; types with an offset beside it;
# types that stay float32; columns that are multiplied together.
SMALL_GROUPS = dict.fromkeys(("Q6_K", "Q3_K", "Q2_K", "IQ2_S", "IQ2_XS", "IQ1_M"), 16)
OFFSETS = frozenset({"Q5_1", "Q4_1", "Q5_K", "Q4_K", "Q2_K"})
PLAIN = frozenset({"F32", "F16", "BF16"})
TILE = 32
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
        unpack: "once" keeps codes with scales; "per_use" keeps the stored blocks, which must stay in RAM to be quick.
        draft: whether the draft block is loaded.
    """
    tensors = _loaded(spec, draft=draft)
    if unpack == "per_use":
        return sum(tensor.byte_count for tensor in tensors.values())
    total = sum(_taken_apart(tensor) for tensor in tensors.values()) + _filling(spec, draft=draft)
    # The embedding is kept in float32 to look rows up, and once more where it is the head too.
    embedding = tensors["token_embd.weight"]
    return total + _floats(embedding) - (_taken_apart(embedding) if "output.weight" in tensors else 0)


def unpack_bytes(spec: ModelSpec, *, unpack: str, draft: bool) -> int:
    """Peak beside the weights while they are taken apart: at load ("once"), or in every window ("per_use")."""
    tensors = _loaded(spec, draft=draft)
    if unpack == "once":  # a layer's experts, joined and then brought into tiles, and the slice at work
        return 2 * max((_taken_apart(tensor) for tensor in tensors.values()), default=0) + SLICE_BYTES
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
    """Peak of one window: activations, what one layer's attention chose and scored, logits with the sampler's copies.

    Args:
        spec: the model.
        rows: rows of the longest window.
        logit_rows: rows whose logits are wanted at once.
        slots: conversations in the window.
        tokens: context of each.
    """
    widest = max(spec.gdn_qkv_width, spec.query_heads * spec.head_dim * 2, spec.experts_used * spec.expert_ff * 2)
    activations = rows * (6 * spec.wide + 4 * widest)
    group = spec.query_heads // spec.kv_heads
    # Pages of each conversation and the runs that a row sees, in 64 bits; scores of eight rows; chosen blocks in bytes.
    attention = 2 * tokens * (slots + 2) + 8 * group * (tokens + 32) + rows * tokens // spec.block_tokens // FLOAT
    logits = 4 * logit_rows * spec.vocabulary
    return (activations + attention + logits) * FLOAT


def _loaded(spec: ModelSpec, *, draft: bool) -> dict[str, TensorInfo]:
    """Tensors that loading reads. The draft layer attends to everything, so its indexer stays in the file."""
    block = f"blk.{spec.trunk_layers}."
    return {
        name: tensor
        for name, tensor in spec.tensors.items()
        if name != NGRAM_TABLE and (not name.startswith(block) or (draft and ".indexer." not in name))
    }


def _taken_apart(tensor: TensorInfo) -> int:
    """One byte a weight, and float32 scales; float32 where there are none."""
    count, name = math.prod(tensor.shape), tensor.type.name
    if name in PLAIN:
        return count * FLOAT
    return count + count // SMALL_GROUPS.get(name, 32) * FLOAT * (2 if name in OFFSETS else 1)


def _filling(spec: ModelSpec, *, draft: bool) -> int:
    """What float32 columns need to fill their last tile: injects, alpha and beta together, the router and its gate."""
    layers, full = spec.trunk_layers + int(draft), sum(spec.full_attention)
    injects = 2 * layers * (-spec.streams % TILE) * spec.wide
    gates = (spec.trunk_layers - full) * (-2 * spec.gdn_value_heads % TILE) * spec.hidden
    routers = layers * (-(spec.experts + 1) % TILE) * spec.hidden
    return (injects + gates + routers) * FLOAT


def _floats(tensor: TensorInfo) -> int:
    return math.prod(tensor.shape) * FLOAT
