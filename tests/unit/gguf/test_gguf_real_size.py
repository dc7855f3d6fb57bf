"""The real model's directory without its data: 48 layers, 512 experts, 320 million n-gram rows, 248,320 tokens."""

from __future__ import annotations

import time
from pathlib import Path
from types import MappingProxyType

import pytest

from appliance.gguf.directory import judge
from appliance.gguf.header import parse_header
from appliance.gguf.metadata import ValueType
from appliance.gguf.part import GgufPart, TensorInfo
from appliance.gguf.reader import GgufSet
from appliance.gguf.types import BY_NAME
from appliance.model.qwen4exp.spec import read_spec
from tests.builders.gguf import Key, TensorSpec, Typed, gguf_bytes

TRUNK, VOCABULARY = 48, 248_320
PRIMES = (3, 23, 33, 47, 59, 63, 69, 77, 81, 93, 107, 147, 153, 159, 161, 171)
HEAD_ROWS = tuple(20_000_000 + p for p in PRIMES)
# Name, shape innermost first, type: as published files have them.
Rows = tuple[tuple[str, tuple[int, ...], str], ...]
GLOBAL: Rows = (
    ("token_embd.weight", (2560, VOCABULARY), "Q4_K"),
    ("output.weight", (2560, VOCABULARY), "Q6_K"),
    ("output_hc_norm.weight", (2560, 4), "F32"),
    ("output_hc_down.weight", (10240, 320), "Q8_0"),
    ("output_hc_up.weight", (320, 10240), "Q8_0"),
    ("per_layer_token_embd.weight", (160, 320_001_536), "IQ4_NL"),
)
COMMON: Rows = (
    *((f"hc_{p}_norm.weight", (10240,), "F32") for p in ("attn", "ffn")),
    *((f"hc_{p}_down.weight", (10240, 320), "Q8_0") for p in ("attn", "ffn")),
    *((f"hc_{p}_up.weight", (320, 10240), "Q8_0") for p in ("attn", "ffn")),
    *((f"hc_{p}_inject.weight", (10240, 4), "F32") for p in ("attn", "ffn")),
    ("ffn_gate_inp.weight", (2560, 512), "F32"),
    ("ffn_gate_exps.weight", (2560, 640, 512), "IQ1_S"),
    ("ffn_up_exps.weight", (2560, 640, 512), "IQ2_XXS"),
    ("ffn_down_exps.weight", (640, 2560, 512), "Q2_0"),
    ("ffn_gate_inp_shexp.weight", (2560, 1), "F32"),
    ("ffn_gate_shexp.weight", (2560, 640), "Q5_K"),
    ("ffn_up_shexp.weight", (2560, 640), "Q5_K"),
    ("ffn_down_shexp.weight", (640, 2560), "Q8_0"),
)
LINEAR: Rows = (
    ("attn_qkv.weight", (2560, 10240), "Q5_K"),
    ("attn_gate.weight", (2560, 6144), "Q5_K"),
    ("ssm_alpha.weight", (2560, 48), "F32"),
    ("ssm_beta.weight", (2560, 48), "F32"),
    ("ssm_a", (48,), "F32"),
    ("ssm_dt.bias", (48,), "F32"),
    ("ssm_conv1d.weight", (4, 10240), "F32"),
    ("ssm_norm.weight", (128,), "F32"),
    ("ssm_out.weight", (6144, 2560), "Q6_K"),
)
FULL: Rows = (
    ("attn_q.weight", (2560, 12288), "Q5_K"),
    ("attn_k.weight", (2560, 512), "Q5_K"),
    ("attn_v.weight", (2560, 512), "Q5_K"),
    ("attn_output.weight", (6144, 2560), "Q5_K"),
    ("attn_q_norm.weight", (256,), "F32"),
    ("attn_k_norm.weight", (256,), "F32"),
    ("indexer.q_proj.weight", (2560, 512), "BF16"),
    ("indexer.k_proj.weight", (2560, 128), "BF16"),
    ("indexer.q_norm.weight", (128,), "F32"),
    ("indexer.k_norm.weight", (128,), "F32"),
)
NGRAM: Rows = (
    ("ple_key.weight", (2560, 10240), "Q8_0"),
    ("ple_value.weight", (2560, 2560), "Q8_0"),
    *((f"ple_norm_{n}.weight", (10240,), "F32") for n in ("key", "query", "conv")),
    ("ple_conv1d.weight", (4, 10240), "F16"),
)
DRAFT: Rows = (
    ("nextn.enorm.weight", (2560,), "F32"),
    ("nextn.hnorm.weight", (10240,), "F32"),
    ("nextn.eh_proj.weight", (5120, 2560), "Q8_0"),
    ("nextn.hc_head_norm.weight", (10240,), "F32"),
    ("nextn.hc_head_down.weight", (10240, 320), "Q8_0"),
    ("nextn.hc_head_up.weight", (320, 10240), "Q8_0"),
)
NUMBERS: dict[str, Key] = {
    "context_length": 262144,
    "embedding_length": 2560,
    "attention.head_count": 24,
    "attention.head_count_kv": 2,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e7,
    "rope.dimension_count": 64,
    "rope.dimension_sections": (11, 11, 10, 0),
    "full_attention_interval": 4,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 128,
    "ssm.group_count": 16,
    "ssm.time_step_rank": 48,
    "ssm.inner_size": 6144,
    "expert_count": 512,
    "expert_used_count": 10,
    "expert_feed_forward_length": 640,
    "expert_shared_feed_forward_length": 640,
    "hyper_connection.count": 4,
    "hyper_connection.low_rank": 320,
    "attention.indexer.head_count": 4,
    "attention.indexer.key_length": 128,
    "attention.indexer.top_k": 2048,
    "ple.layers": (1,),
    "ple.ngram_size": 3,
    "ple.heads_per_ngram": 8,
    "ple.conv_kernel": 4,
    "ple.eos_token_id": 248044,
    "ple.image_token_id": 248056,
    "embedding_length_per_layer_input": 160,
    "ple.layer_multipliers": Typed(ValueType.UINT64, (23703573157769, 20109073645365, 8052911324071)),
    "ple.head_vocab_sizes": Typed(ValueType.UINT64, HEAD_ROWS),
    "ple.head_offsets": Typed(ValueType.UINT64, tuple(sum(HEAD_ROWS[:n]) for n in range(16))),
}


def keys(draft: bool) -> dict[str, Key]:
    ratios = tuple(4 if n % 4 == 3 else 0 for n in range(TRUNK)) + (0,) * draft
    return {
        "general.architecture": "qwen4exp",
        **{f"qwen4exp.{k}": v for k, v in NUMBERS.items()},
        "qwen4exp.block_count": TRUNK + draft,
        **({"qwen4exp.nextn_predict_layers": 1} if draft else {}),
        "qwen4exp.attention.compress_ratios": Typed(ValueType.UINT32, ratios),
        "tokenizer.ggml.tokens": tuple(f"t{n}" for n in range(VOCABULARY)),
        "tokenizer.ggml.merges": tuple(f"a{n} b" for n in range(247_587)),
        "tokenizer.ggml.eos_token_id": 248046,
    }


def directory(draft: bool) -> tuple[list[TensorSpec], int]:
    rows = [*GLOBAL, *((f"blk.1.{n}", s, t) for n, s, t in NGRAM)]
    for block in range(TRUNK):
        rows += [(f"blk.{block}.{n}", s, t) for n, s, t in (*COMMON, *(FULL if block % 4 == 3 else LINEAR))]
    if draft:
        rows += [(f"blk.{TRUNK}.{n}", s, t) for n, s, t in (*COMMON, *FULL, *DRAFT)]
    specs, offset = [], 0
    for name, dims, kind in rows:
        specs.append(TensorSpec(name, dims[::-1], kind, data=b"", offset=offset))
        weights = 1
        for n in dims:
            weights *= n
        size = weights // BY_NAME[kind].block_weights * BY_NAME[kind].block_bytes
        offset += -(-size // 32) * 32
    return specs, offset


@pytest.mark.parametrize(("draft", "count"), [(False, 1224), (True, 1256)], ids=["trunk", "with-draft"])
def test_the_real_models_directory_is_accepted(draft: bool, count: int) -> None:
    specs, size = directory(draft)
    data = gguf_bytes(keys(draft), specs)
    started = time.process_time()
    header = parse_header(memoryview(data), where="real.gguf")
    placed = judge(header, size_bytes=header.data_start + size, where="real.gguf")
    assert placed.unusable == ()
    part = GgufPart(Path("real.gguf"), descriptor=None, content=data, size_bytes=len(data), header=header)
    tensors = {t.name: TensorInfo(t.name, t.dims[::-1], t.type, t.byte_count, part, t.offset) for t in placed.placed}
    spec = read_spec(GgufSet((part,), header.metadata, MappingProxyType(tensors)))
    assert time.process_time() - started < 2.0
    assert len(spec.tensors) == count == len(specs)
    assert spec.full_attention.count(True) == 12
    assert spec.has_draft is draft
    assert spec.warnings == ()
    assert spec.ngram is not None
    assert (spec.ngram.heads, spec.ngram.width) == (16, 2560)
    assert spec.tensors["per_layer_token_embd.weight"].row_bytes == 90
    assert 55 < sum(t.byte_count for t in spec.tensors.values()) / 2**30 < 60
