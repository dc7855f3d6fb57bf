"""Metadata that contradict each other or the tensors are refused with key, value and rule (GGUF-13 to GGUF-17)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from appliance.errors import ModelFileError
from appliance.gguf.metadata import ValueType
from appliance.gguf.reader import open_bytes
from appliance.model import ARCHITECTURES, architecture
from appliance.model.qwen4exp.spec import ModelSpec, read_spec
from tests.builders.gguf import (
    EXPERT_FF,
    EXPERTS,
    HIDDEN,
    LOW_RANK,
    QKV,
    ROW_WIDTH,
    STREAMS,
    TRUNK,
    WIDE,
    TensorSpec,
    TinyModel,
    Typed,
    tiny_model,
)

WHOLE = tiny_model(plain_tokens=("a", "b", "c"))
Q = "qwen4exp."
TABLE = "per_layer_token_embd.weight"


def read(model: TinyModel, *, block_tokens: int | None = None) -> ModelSpec:
    return read_spec(open_bytes(model.to_bytes(), name="model.gguf"), block_tokens=block_tokens)


def refusal(model: TinyModel) -> str:
    started = time.process_time()
    with pytest.raises(ModelFileError) as caught:
        read(model)
    assert time.process_time() - started < 1.0
    message = str(caught.value)
    assert message.startswith("model.gguf: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("qwen35moe", "'qwen35moe'"),
        ("llama", "'llama'"),
        ("qwen4_exp", "'qwen4_exp'"),
        ("QWEN4EXP", "'QWEN4EXP'"),
        ("clip", "vision file"),
        (None, "absent"),
        (7, "must be one string"),
    ],
    ids=lambda v: f"GGUF-14-{v}",
)
def test_other_architectures_are_refused_first(value: str | int | None, says: str) -> None:
    message = refusal(WHOLE.key("general.architecture", value).key(f"{Q}block_count", None))
    assert "general.architecture" in message
    assert says in message
    assert "block_count" not in message


def test_gguf_14_the_table_names_what_is_supported() -> None:
    found = open_bytes(WHOLE.to_bytes(), name="m.gguf").metadata
    assert architecture(found) is ARCHITECTURES["qwen4exp"]
    assert "supported: qwen4exp" in refusal(WHOLE.key("general.architecture", "llama"))


def test_gguf_13_the_draft_block_is_split_off_by_its_key() -> None:
    with_draft, without = read(WHOLE), read(WHOLE.without_draft())
    assert with_draft.trunk_layers == without.trunk_layers == TRUNK
    assert with_draft.full_attention == without.full_attention == (False, False, False, True)
    assert f"blk.{TRUNK}.attn_q.weight" in with_draft.tensors
    undeclared = refusal(WHOLE.key(f"{Q}nextn_predict_layers", None))
    assert f"block {TRUNK} holds nextn tensors; qwen4exp.nextn_predict_layers must then be 1" in undeclared
    beyond = WHOLE.without_draft().shape(f"blk.{TRUNK}.attn_q.weight", 4, 4)
    assert f"tensors of block {TRUNK} exist; qwen4exp.block_count {TRUNK}" in refusal(beyond)


def test_gguf_13_the_kind_of_a_layer_comes_from_the_file() -> None:
    silent = read(WHOLE.key(f"{Q}full_attention_interval", None))
    assert silent.full_attention == (False, False, False, True)
    explicit = WHOLE.key(f"{Q}full_attention_interval", 3)
    assert read(explicit.key(f"{Q}attention.recurrent_layers", (True, True, True, False, False))).block_tokens == 4
    message = refusal(explicit)
    assert "blocks 2 hold the tensors of a linear layer; qwen4exp.full_attention_interval says otherwise" in message
    wrong = refusal(WHOLE.key(f"{Q}attention.recurrent_layers", (1, 1, 0, 1)))
    assert "qwen4exp.attention.recurrent_layers says otherwise" in wrong


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.tensor(TABLE, None), f"tensor {TABLE} (the n-gram table) is missing: expected at least 60 rows"),
        (lambda m: m.shape(TABLE, 59, ROW_WIDTH), f"tensor {TABLE} has 59 rows; expected at least 60"),
        (lambda m: m.shape(TABLE, 60, 16), f"tensor {TABLE} has shape [60, 16]; it must have rows of {ROW_WIDTH}"),
        (lambda m: m.shape(TABLE, 45, ROW_WIDTH), f"tensor {TABLE} has 45 rows; expected at least 60"),
        (lambda m: m.key(f"{Q}ple.layers", None), "qwen4exp.ple.layers is absent"),
        (lambda m: m.tensor("blk.1.ple_key.weight", None), "tensor blk.1.ple_key.weight is missing"),
    ],
    ids=["GGUF-15-none", "GGUF-15-one-row", "GGUF-15-width", "GGUF-15-3-of-4", "GGUF-15-keys", "GGUF-15-key-proj"],
)
def test_the_ngram_table_must_be_whole(change: Callable[[TinyModel], TinyModel], says: str) -> None:
    assert says in refusal(change(WHOLE))


def test_a_model_without_ngram_layer_has_none() -> None:
    keys = {k: v for k, v in WHOLE.keys.items() if ".ple." not in k}
    spec = read(TinyModel(keys, WHOLE.without("per_layer", "blk.1.ple").tensors))
    assert spec.ngram is None
    assert spec.stop_token_ids == {3, 5}


CONTRADICTIONS: dict[str, tuple[Callable[[TinyModel], TinyModel], str]] = {
    "GGUF-16-used-0": (lambda m: m.key(f"{Q}expert_used_count", 0), "expert_used_count is 0; it must be 1"),
    "GGUF-16-used-600": (lambda m: m.key(f"{Q}expert_used_count", 600), "expert_used_count is 600; it must be 1 to"),
    "GGUF-16-count": (
        lambda m: m.key(f"{Q}expert_count", 2),
        "tensor blk.N.ffn_gate_exps.weight (blocks 0-3) has shape [4, 32, 32]; it must be [2, 32, 32]",
    ),
    "GGUF-16-kv-0": (lambda m: m.key(f"{Q}attention.head_count_kv", 0), "head_count_kv is 0; it must be 1"),
    "GGUF-16-kv-array": (lambda m: m.key(f"{Q}attention.head_count_kv", (0, 2, 4)), "has the values [2, 4]"),
    "GGUF-16-kv-3": (lambda m: m.key(f"{Q}attention.head_count_kv", 3), "head_count is 4; it must be a multiple"),
    "GGUF-16-eos": (lambda m: m.key("tokenizer.ggml.eos_token_id", 9), "eos_token_id is 9; it must be below the 9"),
    "GGUF-16-reset": (lambda m: m.key(f"{Q}ple.eos_token_id", 9), "ple.eos_token_id is 9; it must be below the 9"),
    "GGUF-16-token-list": (
        lambda m: m.key("tokenizer.ggml.tokens", tuple("abcdefgh")),
        "tensor token_embd.weight has shape [9, 32]; it must be [8, 32] (one row for each entry",
    ),
    "GGUF-16-vocab-size": (lambda m: m.key(f"{Q}vocab_size", 10), "vocab_size is 10; tokenizer.ggml.tokens has 9"),
    "no-tokens": (lambda m: m.key("tokenizer.ggml.tokens", None), "tokenizer.ggml.tokens is absent"),
    "blocks": (lambda m: m.key(f"{Q}block_count", 1 << 31), "block_count is 2147483648; it must be 1 to 1024"),
    "missing-block": (lambda m: m.without("blk.1.", "blk.2."), "trunk blocks 1-2 are missing"),
    "streams": (lambda m: m.key(f"{Q}hyper_connection.count", 1), "hyper_connection.count is 1; it must be 2"),
    "mixer": (lambda m: m.without("output_hc"), "tensor output_hc_norm.weight is missing"),
    "ple-two": (lambda m: m.key(f"{Q}ple.layers", (0, 1)), "ple.layers is [0, 1]; it must name exactly one"),
    "ple-none": (lambda m: m.key(f"{Q}ple.layers", Typed(ValueType.INT32, ())), "it must name exactly one"),
    "ple-full": (lambda m: m.key(f"{Q}ple.layers", (3,)), "names layer 3, a full-attention layer"),
    "ple-beyond": (lambda m: m.key(f"{Q}ple.layers", (4,)), "names layer 4; it must be 0 to 3"),
    "ple-multipliers": (lambda m: m.key(f"{Q}ple.layer_multipliers", (3, 5)), "has 2 entries; it must have at least 3"),
    "ple-wraps": (
        lambda m: m.key(f"{Q}ple.layer_multipliers", Typed(ValueType.UINT64, (1, 1, 1 << 62))),
        "it must stay below 2^63",
    ),
    "ple-heads": (lambda m: m.key(f"{Q}ple.head_vocab_sizes", (11, 13, 17)), "has 3 entries; it must have at least 4"),
    "ple-empty-head": (lambda m: m.key(f"{Q}ple.head_vocab_sizes", (11, 0, 17, 19)), "contains 0; its entries must"),
    "inner": (lambda m: m.key(f"{Q}ssm.inner_size", 33), "ssm.inner_size is 33; it must be"),
    "value-heads": (lambda m: m.key(f"{Q}ssm.group_count", 3), "time_step_rank is 4; it must be a multiple"),
    "value-length": (lambda m: m.key(f"{Q}attention.value_length", 8), "value_length is 8; it must equal"),
    "ratio-0": (
        lambda m: m.key(f"{Q}attention.compress_ratios", (0, 0, 0, 0, 0)),
        "compress_ratios is 0 for the full-attention layers 3, which have indexer tensors",
    ),
    "ratio-linear": (lambda m: m.key(f"{Q}attention.compress_ratios", (4, 0, 0, 4, 0)), "not 0 for the linear layers"),
    "ratio-length": (lambda m: m.key(f"{Q}attention.compress_ratios", (0, 0, 0, 4)), "has 4 entries; it must have one"),
    "budget": (lambda m: m.key(f"{Q}attention.indexer.top_k", 18), "top_k is 18; it must be a multiple of the block"),
    "two-drafts": (lambda m: m.key(f"{Q}nextn_predict_layers", 2), "nextn_predict_layers is 2; it must be 0 to 1"),
    "padded": (
        lambda m: m.shape("blk.0.ffn_down_exps.weight", EXPERTS, HIDDEN, EXPERT_FF + 32),
        "tensor blk.0.ffn_down_exps.weight has shape [4, 32, 64]; it must be [4, 32, 32] (experts padded",
    ),
    "rope-dims": (lambda m: m.key(f"{Q}rope.dimension_count", 9), "dimension_count is 9; it must be even and at most"),
    "rope-sections": (lambda m: m.key(f"{Q}rope.dimension_sections", (2, 2, 1)), "its sum must be half of"),
    "rope-fourth": (lambda m: m.key(f"{Q}rope.dimension_sections", (1, 1, 1, 1)), "four with a zero last"),
    "rope-scaling": (lambda m: m.key(f"{Q}rope.scaling.type", "yarn"), "rope.scaling.type is 'yarn'"),
    "theta": (lambda m: m.key(f"{Q}rope.freq_base", float("inf")), "rope.freq_base"),
    "eps": (lambda m: m.key(f"{Q}attention.layer_norm_rms_epsilon", 0.0), "rms_epsilon is 0; it must be above 0"),
    "wrong-type": (lambda m: m.key(f"{Q}embedding_length", "32"), "embedding_length is STRING '32'; it must be one"),
    "both-kinds": (lambda m: m.shape("blk.0.attn_q.weight", 128, HIDDEN), "block 0 has attn_q and attn_qkv"),
    "norm-count": (
        lambda m: m.shape("blk.2.hc_attn_norm.weight", WIDE - 1),
        "tensor blk.2.hc_attn_norm.weight has shape [63]; it must be [64]",
    ),
}


@pytest.mark.parametrize(("change", "says"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictions_are_refused_by_name(change: Callable[[TinyModel], TinyModel], says: str) -> None:
    assert says in refusal(change(WHOLE))


def test_gguf_16_several_contradictions_are_one_message_with_one_sentence_each() -> None:
    model = WHOLE.key(f"{Q}expert_used_count", 5).key("tokenizer.ggml.eos_token_id", 10).key(f"{Q}ssm.inner_size", 1)
    message = refusal(model.shape("blk.2.ffn_gate_inp.weight", 3, HIDDEN))
    assert "4 contradictions: (1) " in message
    for says in ("ssm.inner_size is 1", "expert_used_count is 5", "eos_token_id is 10", "blk.2.ffn_gate_inp.weight"):
        assert says in message


@pytest.mark.parametrize("kind", [t for t in ValueType if t.name.startswith(("INT", "UINT"))], ids=lambda t: t.name)
def test_any_integer_type_will_do(kind: ValueType) -> None:
    model = WHOLE
    for key in ("block_count", "embedding_length", "expert_count", "attention.indexer.top_k"):
        value = WHOLE.keys[Q + key]
        assert isinstance(value, int)
        model = model.key(Q + key, Typed(kind, value))
    for key in ("attention.compress_ratios", "ple.layers", "rope.dimension_sections"):
        values = WHOLE.keys[Q + key]
        assert isinstance(values, tuple)
        model = model.key(Q + key, Typed(kind, values))
    assert read(model).full_attention == (False, False, False, True)


def test_other_writers_shapes_are_accepted_and_made_ours() -> None:
    model = (
        WHOLE.shape("blk.0.hc_attn_norm.weight", STREAMS, HIDDEN)
        .shape("output_hc_norm.weight", STREAMS, HIDDEN)
        .shape("blk.1.ffn_gate_inp_shexp.weight", 1, HIDDEN)
        .shape("blk.0.ssm_conv1d.weight", QKV, 1, 4, kind="F16")
        .shape("blk.1.ple_conv1d.weight", WIDE, 4, kind="BF16")
        .key(f"{Q}attention.head_count_kv", (0, 0, 0, 2, 2))
        .key(f"{Q}expert_feed_forward_length", (32,) * 5)
        .key(f"{Q}rope.dimension_sections", (2, 1, 1))
        .tensor("output.weight", None)
    )
    spec = read(model)
    assert spec.kv_heads == 2
    assert spec.rope_sections == (2, 1, 1)
    assert spec.tensors["blk.0.hc_attn_norm.weight"].shape == (WIDE,)
    assert spec.tensors["blk.0.ssm_conv1d.weight"].shape == (QKV, 4)
    assert "output.weight" not in spec.tensors
    assert spec.warnings == ()


def test_fused_experts_are_accepted_layer_by_layer() -> None:
    model = WHOLE.without("blk.0.ffn_gate_exps", "blk.0.ffn_up_exps")
    spec = read(model.shape("blk.0.ffn_gate_up_exps.weight", EXPERTS, 2 * EXPERT_FF, HIDDEN, kind="Q8_0"))
    assert "blk.0.ffn_gate_up_exps.weight" in spec.tensors
    assert "blk.1.ffn_gate_exps.weight" in spec.tensors
    assert "tensor blk.0.ffn_gate_exps.weight is missing" in refusal(model)


def test_wrong_block_sizes_can_be_overridden() -> None:
    model = WHOLE.key(f"{Q}attention.compress_ratios", (0, 0, 0, 0, 0))
    assert read(model, block_tokens=4).block_tokens == 4


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("blk.0.hc_attn_inject.weight", (STREAMS, WIDE), "Q4_0"),
        ("blk.2.ffn_gate_inp.weight", (EXPERTS, HIDDEN), "IQ4_NL"),
        ("blk.3.indexer.q_proj.weight", (16, HIDDEN), "Q5_1"),
        ("blk.0.ssm_alpha.weight", (4, HIDDEN), "Q4_1"),
        ("output_hc_down.weight", (LOW_RANK, WIDE), "Q5_0"),
    ],
    ids=lambda v: f"GGUF-17-{v}" if isinstance(v, str) and v[0] in "bo" else "",
)
def test_structural_tensors_below_8_bits_are_a_warning(name: str, shape: tuple[int, ...], kind: str) -> None:
    spec = read(WHOLE.shape(name, *shape, kind=kind))
    assert len(spec.warnings) == 1
    assert f"1 structural tensor(s) are stored below 8 bits ({name} {kind})" in spec.warnings[0]


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("blk.0.hc_attn_down.weight", (LOW_RANK, WIDE), "Q8_0"),
        ("blk.0.ffn_gate_exps.weight", (EXPERTS, EXPERT_FF, HIDDEN), "Q4_0"),
        ("token_embd.weight", (9, HIDDEN), "Q4_0"),
        (TABLE, (60, ROW_WIDTH), "IQ4_NL"),
    ],
    ids=["hc-q8", "experts", "embedding", "ngram-table"],
)
def test_gguf_17_what_may_be_coarse_is_no_warning(name: str, shape: tuple[int, ...], kind: str) -> None:
    assert read(WHOLE.shape(name, *shape, kind=kind)).warnings == ()


def test_sampling_defaults_and_names() -> None:
    model = (
        WHOLE.key("general.sampling.temp", 1.0)
        .key("general.sampling.top_p", 7.0)
        .key("general.sampling.top_k", 20)
        .key("general.sampling.min_p", 0.25)
        .key("general.name", None)
        .key("general.size_label", "125B-A6B")
    )
    spec = read(model)
    assert (spec.sampling.temperature, spec.sampling.top_k, spec.sampling.min_p) == (1.0, 20, 0.25)
    assert spec.sampling.top_p is None
    assert spec.warnings == ("model.gguf: general.sampling.top_p is 7 and is ignored; it must be 1e-06 to 1",)
    assert (spec.name, spec.size_label) == ("model", "125B-A6B")


def test_stop_tokens_are_found_by_key_and_by_text() -> None:
    tokens = ("a", "<|fim_pad|>", "<|file_sep|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "x", "y", "z")
    assert read(WHOLE.key("tokenizer.ggml.tokens", tokens)).stop_token_ids == {1, 2, 3, 5}
    assert read(WHOLE.key("tokenizer.ggml.eot_token_id", 7)).stop_token_ids == {3, 5, 7}


def test_tensors_that_nothing_uses_are_named() -> None:
    spec = read(WHOLE.tensor("blk.0.attn_q.bias", TensorSpec("blk.0.attn_q.bias", (4,))))
    assert spec.warnings == ("1 tensor(s) in the file are not used: blk.0.attn_q.bias",)
