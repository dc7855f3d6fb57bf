"""Owns the spec of a catalogue entry before its file is here: real shapes, usual types, so that it can be placed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from appliance.gguf.header import Header
from appliance.gguf.metadata import Metadata
from appliance.gguf.reader import GgufPart, TensorInfo
from appliance.gguf.types import BY_NAME
from appliance.model.qwen4exp.hyperparameters import Hyperparameters, NgramSpec
from appliance.model.qwen4exp.spec import ModelSpec, SamplingDefaults
from appliance.model.qwen4exp.spec_tensors import TABLE, Rules, block_rules, draft_rules, global_rules, ngram_rules
from appliance.models.catalogue import Size

LAYERS: Final = 48
INTERVAL: Final = 4
BLOCK_TOKENS: Final = 4
TABLE_ROWS: Final = 320_001_536
FLOAT_TYPES: Final = ("norm", "conv1d", "ssm_a", "ssm_dt", "ssm_alpha", "ssm_beta", "inject", "gate_inp")
# Matrices with an inner width of 320 or 160 have no 256-weight blocks.
NARROW: Final = "Q8_0"

NGRAM: Final = NgramSpec(
    layer=1,
    order=3,
    heads_per_order=8,
    conv_kernel=4,
    reset_token_id=248044,
    image_token_id=248056,
    row_width=160,
    multipliers=(23703573157769, 20109073645365, 8052911324071),
    head_rows=(TABLE_ROWS // 16,) * 16,
    head_offsets=tuple(TABLE_ROWS // 16 * number for number in range(16)),
)

REAL: Final = Hyperparameters(
    trunk_layers=LAYERS,
    context_tokens=262144,
    hidden=2560,
    vocabulary=248320,
    query_heads=24,
    kv_heads=2,
    head_dim=256,
    rope_dims=64,
    rope_theta=1e7,
    rope_sections=(11, 11, 10),
    rms_eps=1e-6,
    conv_kernel=4,
    gdn_head_dim=128,
    gdn_key_heads=16,
    gdn_value_heads=48,
    experts=512,
    experts_used=10,
    expert_ff=640,
    shared_ff=640,
    streams=4,
    low_rank=320,
    indexer_heads=4,
    indexer_dim=128,
    indexer_budget=2048,
    ngram=NGRAM,
)
"""Section 1 of the model's description."""


def outline(size: Size, *, draft: bool = True) -> ModelSpec:
    """The model of a catalogue entry; it can be placed and priced, not loaded.

    Args:
        size: the entry.
        draft: whether its drafter is there, inside or beside.
    """
    full = tuple((layer + 1) % INTERVAL == 0 for layer in range(LAYERS))
    part = GgufPart(
        Path(f"{size.id}.gguf"),
        descriptor=None,
        content=b"",
        size_bytes=size.file_bytes,
        header=Header(version=3, metadata=Metadata({}, where=size.id), entries=(), alignment=32, data_start=0),
    )
    tensors = _tensors(size, "", global_rules(REAL), part)
    for layer in range(LAYERS):
        rules = block_rules(REAL, full=full[layer], fused=False)
        if layer == NGRAM.layer:
            rules |= ngram_rules(REAL)
        tensors |= _tensors(size, f"blk.{layer}.", rules, part)
    if draft:
        tensors |= _tensors(size, f"blk.{LAYERS}.", draft_rules(REAL, fused=False, halves=False), part)
    table = BY_NAME["IQ4_NL"]
    tensors[TABLE] = TensorInfo(TABLE, (TABLE_ROWS, NGRAM.row_width), table, size.table_bytes, part, 0)
    return ModelSpec(
        **{name: getattr(REAL, name) for name in Hyperparameters.__dataclass_fields__},
        name=f"Qwen3.8-Flash-Next {size.name}",
        size_label="125B-A6B",
        has_draft=draft,
        draft_note=None if draft else "the set has no draft layer",
        full_attention=full,
        block_tokens=BLOCK_TOKENS,
        stop_token_ids=frozenset({248044, 248046}),
        sampling=SamplingDefaults(),
        tensors=tensors,
        warnings=(),
    )


def _tensors(size: Size, prefix: str, rules: Rules, part: GgufPart) -> dict[str, TensorInfo]:
    found = {}
    for name, rule in rules.items():
        kind = BY_NAME[_type(size, name, rule.shape)]
        count = math.prod(rule.shape) // kind.block_weights * kind.block_bytes
        found[prefix + name] = TensorInfo(prefix + name, rule.shape, kind, count, part, 0)
    return found


def _type(size: Size, name: str, shape: tuple[int, ...]) -> str:
    if len(shape) == 1 or any(word in name for word in FLOAT_TYPES):
        return "F32"
    if "_exps." in name:
        return size.types.down if "down" in name else size.types.gate_up
    if name in ("token_embd.weight", "output.weight"):
        return size.types.head
    return size.types.dense if shape[-1] % BY_NAME[size.types.dense].block_weights == 0 else NARROW
