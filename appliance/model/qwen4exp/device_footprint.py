"""What a qwen4exp model takes on a card, in bytes, part by part; torch-free arithmetic over the spec."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from appliance.gguf.reader import TensorInfo
from appliance.model.qwen4exp.footprint import FLOAT, NGRAM_TABLE, SlotBytes
from appliance.model.qwen4exp.spec import ModelSpec

TILE_ROWS: Final = 32
TILE_COLUMNS: Final = 128
TAIL_WORDS: Final = 4
RING: Final = 16
WINDOW_ROWS: Final = 40
"""Rows of the largest window on a card."""

SWAP_MOVES: Final = 8
"""Exchanges of experts at once; each has a spare place on the card."""

# Words of a tile of 32 x 128 weights in the form each type is packed in; tests hold it to kernels.planes.
TILE_WORDS: Final[dict[str, int]] = {
    "F32": 4096,
    "F16": 2048,
    "BF16": 2048,
    "Q8_0": 1088,
    "Q6_K": 848,
    "Q5_K": 736,
    "Q5_1": 768,
    "Q5_0": 704,
    "Q4_K": 608,
    "Q4_1": 640,
    "Q4_0": 576,
    "Q3_K": 464,
    "Q2_K": 352,
    "Q2_0": 320,
    "IQ4_NL": 576,
    "IQ4_XS": 560,
    "IQ3_S": 544,
    "IQ3_XXS": 544,
    "IQ2_S": 432,
    "IQ2_XS": 432,
    "IQ2_XXS": 416,
    "IQ1_S": 416,
    "IQ1_M": 432,
}
WIDE_TILE_WORDS: Final = 1280
# Where pinned RAM has a smaller form than the card.
HOST_TILE_WORDS: Final[dict[str, int]] = {"IQ3_S": 448}
MOST_SPLITS: Final = 64
"""Of a row's attention between programs."""
KV_BYTES: Final = {"f32": 4, "bf16": 2, "int8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertBytes:
    """Routed experts of all layers.

    Attributes:
        layers: bytes of one expert, for each layer that has them (the draft layer last, if it is loaded).
        count: experts of a layer.
    """

    layers: tuple[int, ...]
    count: int

    @property
    def total(self) -> int:
        """All experts of all layers."""
        return sum(self.layers) * self.count


def plane_bytes(tile_words: int, *, rows: int, columns: int) -> int:
    """A matrix in planes."""
    chunks = math.ceil(columns / TILE_COLUMNS)
    return math.ceil(rows / TILE_ROWS) * (chunks * tile_words + TAIL_WORDS) * 4


def matrix_bytes(tensor: TensorInfo) -> int:
    """A stored matrix in planes."""
    columns = tensor.shape[-1]
    return plane_bytes(TILE_WORDS[tensor.type.name], rows=math.prod(tensor.shape[:-1]), columns=columns)


def expert_bytes(spec: ModelSpec, *, draft: bool) -> ExpertBytes:
    """Routed experts as the card holds them."""
    layers = range(spec.trunk_layers + int(draft))
    return ExpertBytes(layers=tuple(_one_expert(spec, layer) for layer in layers), count=spec.experts)


def host_expert_bytes(spec: ModelSpec, *, draft: bool) -> int:
    """All routed experts as pinned RAM holds them."""
    return sum(host_expert_sizes(spec, draft=draft))


def host_expert_sizes(spec: ModelSpec, *, draft: bool) -> tuple[int, ...]:
    """The same, layer by layer."""
    layers = range(spec.trunk_layers + int(draft))
    return tuple(_one_expert(spec, layer, host=True) * spec.experts for layer in layers)


def dense_bytes(spec: ModelSpec, *, draft: bool) -> int:
    """Everything but routed experts and the n-gram table."""
    total = 0
    for name, tensor in spec.tensors.items():
        mine = not name.startswith(f"blk.{spec.trunk_layers}.") or (draft and ".indexer." not in name)
        if name == NGRAM_TABLE or "_exps." in name or not mine:
            continue
        total += dense_tensor_bytes(name, tensor)
    return total if "output.weight" in spec.tensors else total + matrix_bytes(spec.tensors["token_embd.weight"])


def slot_bytes(spec: ModelSpec, *, page_tokens: int, kv_type: str, draft: bool) -> SlotBytes:
    """State of one conversation; see `device.state`."""
    full = sum(spec.full_attention)
    linear = spec.trunk_layers - full
    heads, dim = spec.gdn_value_heads, spec.gdn_head_dim
    journal = (spec.gdn_key_heads + heads) * dim + 2 * heads
    fixed = linear * (heads * dim * dim + RING * (spec.gdn_qkv_width + journal) + heads)
    fixed += full * RING * spec.indexer_dim + RING
    if spec.ngram is not None:
        fixed += RING * spec.wide
    tokens = spec.kv_heads * page_tokens
    each = KV_BYTES[kv_type] * spec.head_dim + (FLOAT if kv_type == "int8" else 0)
    pooled = full * (page_tokens // spec.block_tokens) * spec.indexer_dim * (FLOAT if kv_type == "f32" else 2)
    return SlotBytes(fixed=fixed * FLOAT, page=2 * (full + int(draft)) * tokens * each + pooled)


def _one_expert(spec: ModelSpec, layer: int, *, host: bool = False) -> int:
    table = TILE_WORDS | HOST_TILE_WORDS if host else TILE_WORDS
    block, ff = f"blk.{layer}", math.ceil(spec.expert_ff / TILE_COLUMNS) * TILE_COLUMNS
    fused = spec.tensors.get(f"{block}.ffn_gate_up_exps.weight")
    if fused is not None:
        words = table[fused.type.name]
    else:
        types = {spec.tensors[f"{block}.ffn_{name}_exps.weight"].type.name for name in ("gate", "up")}
        words = table[types.pop()] if len(types) == 1 else WIDE_TILE_WORDS
    down = spec.tensors[f"{block}.ffn_down_exps.weight"]
    gate_up = plane_bytes(words, rows=2 * ff, columns=spec.hidden)
    return gate_up + plane_bytes(table[down.type.name], rows=spec.hidden, columns=spec.expert_ff)


def dense_tensor_bytes(name: str, tensor: TensorInfo) -> int:
    """One tensor that is neither an expert nor the n-gram table."""
    if name == "token_embd.weight":
        return tensor.byte_count
    rows, columns = math.prod(tensor.shape[:-1]), tensor.shape[-1]
    if ".ffn_gate_inp" in name:
        # The router decides, so it keeps every bit; the shared expert's gate is one more row, in a strip of its own.
        return plane_bytes(TILE_WORDS["F32"], rows=rows, columns=columns)
    if ".ffn_gate_shexp." in name or ".ffn_up_shexp." in name:
        rows = math.ceil(rows / TILE_COLUMNS) * TILE_COLUMNS
        return plane_bytes(TILE_WORDS[tensor.type.name], rows=rows, columns=columns)
    if len(tensor.shape) == 1 or "norm" in name or "conv1d" in name or "_inject." in name:
        return math.prod(tensor.shape) * FLOAT
    return matrix_bytes(tensor)
