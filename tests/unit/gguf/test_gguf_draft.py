"""The draft block in every layout met in the wild (GGUF-12): mapped, borrowed, left out with a reason, or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from appliance.errors import ModelFileError
from appliance.gguf.reader import open_bytes
from appliance.model.qwen4exp.spec import ModelSpec, read_spec
from tests.builders.gguf import HIDDEN, TRUNK, WIDE, TensorSpec, TinyModel, tiny_model

BLOCK = f"blk.{TRUNK}."
MIXER = ("hc_head_norm", "hc_head_down", "hc_head_up")
WHOLE = tiny_model(plain_tokens=("a", "b", "c"))
VOCABULARY = 9


def read(model: TinyModel, draft: TinyModel | None = None) -> ModelSpec:
    companion = None if draft is None else open_bytes(draft.to_bytes(), name="draft.gguf")
    return read_spec(open_bytes(model.to_bytes(), name="model.gguf"), draft=companion)


def refusal(model: TinyModel, draft: TinyModel | None = None) -> str:
    with pytest.raises(ModelFileError) as caught:
        read(model, draft)
    return str(caught.value)


def draft_names(spec: ModelSpec) -> set[str]:
    return {n.removeprefix(BLOCK) for n in spec.tensors if n.startswith(BLOCK)}


CANONICAL = draft_names(read(WHOLE))


def legacy_mixer(model: TinyModel) -> TinyModel:
    for name in MIXER:
        model = model.rename(f"{BLOCK}nextn.{name}.weight", f"output_{name.replace('_head', '')}.weight")
    return model


def other_writer(model: TinyModel) -> TinyModel:
    for name in MIXER:
        model = model.rename(f"{BLOCK}nextn.{name}.weight", f"{BLOCK}nextn.{name.replace('_head', '')}.weight")
    for name in ("fc_embd", "fc_hidden"):
        model = model.shape(f"{BLOCK}nextn.{name}.weight", HIDDEN, HIDDEN)
    return model.tensor(f"{BLOCK}nextn.eh_proj.weight", None)


def with_own_embedding(model: TinyModel) -> TinyModel:
    for name in ("token_embd.weight", "output.weight"):
        model = model.tensor(name, WHOLE.tensors[name])
    return model


SAME: dict[str, Callable[[TinyModel], TinyModel]] = {
    "GGUF-12-c-shared": lambda d: d.key("qwen4exp.nextn_shared_target_tensors", True),
    "GGUF-12-b-own-embedding-and-head": with_own_embedding,
    "GGUF-12-d-mixer-under-output-hc": legacy_mixer,
    "GGUF-12-d-with-own-embedding": lambda d: legacy_mixer(with_own_embedding(d)),
    "GGUF-12-other-type": lambda d: d.shape(f"{BLOCK}attn_q.weight", 128, HIDDEN, kind="Q8_0"),
    "GGUF-12-hnorm-2d": lambda d: d.shape(f"{BLOCK}nextn.hnorm.weight", WIDE // HIDDEN, HIDDEN),
    "GGUF-12-no-tokenizer": lambda d: TinyModel({k: v for k, v in d.keys.items() if "tokenizer" not in k}, d.tensors),
}


@pytest.mark.parametrize("layout", SAME.values(), ids=SAME)
def test_a_companion_gives_the_canonical_tensors(layout: Callable[[TinyModel], TinyModel]) -> None:
    spec = read(WHOLE.without_draft(), layout(WHOLE.draft_only()))
    assert spec.has_draft
    assert spec.draft_note is None
    assert draft_names(spec) == CANONICAL
    assert spec.warnings == ()
    assert spec.tensors["output_hc_norm.weight"].part.path.name == "model.gguf"
    assert spec.tensors["token_embd.weight"].part.path.name == "model.gguf"
    assert spec.tensors[f"{BLOCK}nextn.hc_head_norm.weight"].part.path.name == "draft.gguf"


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "companion"])
def test_gguf_12_e_another_writers_names(inside: bool) -> None:
    spec = read(other_writer(WHOLE)) if inside else read(WHOLE.without_draft(), other_writer(WHOLE.draft_only()))
    assert spec.has_draft
    halves = {"nextn.fc_embd.weight", "nextn.fc_hidden.weight"}
    assert draft_names(spec) == (CANONICAL - {"nextn.eh_proj.weight"}) | halves
    assert spec.warnings == ()


def test_gguf_12_a_private_embedding_inside_the_block_is_a_warning() -> None:
    spec = read(WHOLE.shape(f"{BLOCK}nextn.embed_tokens.weight", VOCABULARY, HIDDEN))
    assert draft_names(spec) == CANONICAL
    assert len(spec.warnings) == 1
    assert "own nextn.embed_tokens.weight not used: it borrows the trunk's" in spec.warnings[0]
    small = WHOLE.shape(f"{BLOCK}nextn.shared_head_head.weight", 4, HIDDEN)
    assert "reduced vocabulary" in refusal(small)


def test_gguf_12_without_draft_says_why() -> None:
    spec = read(WHOLE.without_draft())
    assert not spec.has_draft
    assert spec.draft_note is not None
    assert "nextn_predict_layers is absent" in spec.draft_note
    announced = read(WHOLE.without(BLOCK))
    assert not announced.has_draft
    assert announced.draft_note is not None
    assert "announces a draft block and holds no tensor of it" in announced.draft_note


def test_gguf_12_f_a_block_without_its_mixer_is_left_out_with_a_warning() -> None:
    model = WHOLE
    for name in MIXER:
        model = model.tensor(f"{BLOCK}nextn.{name}.weight", None)
    spec = read(model)
    assert not spec.has_draft
    assert not draft_names(spec)
    assert spec.draft_note is not None
    assert "lacks its mixer" in spec.draft_note
    assert any("drafting is off" in w for w in spec.warnings)
    assert "holds 29 of its 32 tensors" in refusal(WHOLE.without_draft(), model.draft_only())


REFUSED: dict[str, tuple[Callable[[TinyModel], TinyModel], str]] = {
    "GGUF-12-width": (lambda d: d.key("qwen4exp.embedding_length", 64), "embedding_length is 64 and 32 in the model"),
    "GGUF-12-experts": (lambda d: d.key("qwen4exp.expert_count", 8), "expert_count is 8 and 4 in the model"),
    "GGUF-12-theta": (lambda d: d.key("qwen4exp.rope.freq_base", 5e5), "rope.freq_base is 500000 and 10000"),
    "GGUF-12-vocabulary": (
        lambda d: d.key("tokenizer.ggml.tokens", ("a", "b")),
        "tokenizer.ggml.tokens has 2 entries and 9 in the model",
    ),
    "GGUF-12-depth": (lambda d: d.key("qwen4exp.block_count", 9), "qwen4exp.block_count is 9; for this model"),
    "GGUF-12-two-blocks": (lambda d: d.key("qwen4exp.nextn_predict_layers", 2), "nextn_predict_layers is 2"),
    "GGUF-12-architecture": (lambda d: d.key("general.architecture", "qwen3"), "general.architecture is 'qwen3'"),
    "GGUF-12-partial": (lambda d: d.tensor(f"{BLOCK}attn_q.weight", None), "missing: attn_q.weight"),
    "GGUF-12-half-a-mixer": (
        lambda d: d.tensor(f"{BLOCK}nextn.hc_head_up.weight", None),
        "missing: nextn.hc_head_up.weight",
    ),
    "GGUF-12-half-a-projection": (
        lambda d: other_writer(d).tensor(f"{BLOCK}nextn.fc_embd.weight", None),
        "missing: nextn.fc_embd.weight",
    ),
    "GGUF-12-shape": (
        lambda d: d.shape(f"{BLOCK}nextn.eh_proj.weight", HIDDEN, HIDDEN),
        f"tensor {BLOCK}nextn.eh_proj.weight has shape [32, 32]; it must be [32, 64]",
    ),
    "GGUF-12-g-d2t": (lambda d: d.tensor("d2t", TensorSpec("d2t", (4,))), "reduced vocabulary"),
    "GGUF-12-g-small-head": (lambda d: d.shape("output.weight", 4, HIDDEN), "reduced vocabulary"),
    "GGUF-12-two-mixers": (
        lambda d: d.shape("output_hc_norm.weight", WIDE),
        "both are the draft block's nextn.hc_head_norm.weight",
    ),
    "GGUF-12-no-block": (lambda d: d.without("blk."), "must have exactly one"),
}


@pytest.mark.parametrize(("change", "says"), REFUSED.values(), ids=REFUSED)
def test_a_companion_that_does_not_fit_is_refused(change: Callable[[TinyModel], TinyModel], says: str) -> None:
    message = refusal(WHOLE.without_draft(), change(WHOLE.draft_only()))
    assert message.startswith("draft.gguf: ")
    assert says in message


def test_gguf_12_several_contradictions_are_one_message() -> None:
    draft = WHOLE.draft_only().key("qwen4exp.embedding_length", 64).key("qwen4exp.expert_count", 8)
    message = refusal(WHOLE.without_draft(), draft)
    assert "2 contradictions: (1) qwen4exp.embedding_length" in message
    assert "(2) qwen4exp.expert_count" in message


def test_gguf_12_half_of_the_block_inside_the_model_is_refused() -> None:
    half = WHOLE.without(f"{BLOCK}ffn", f"{BLOCK}nextn")
    assert "a partial draft block is never used" in refusal(half)


def test_a_draft_file_alone_is_no_model() -> None:
    assert "belongs in model.draft_path" in refusal(WHOLE.draft_only().key("qwen4exp.ple.layers", None))


def test_a_whole_model_may_be_the_companion() -> None:
    spec = read(WHOLE.without_draft(), WHOLE)
    assert draft_names(spec) == CANONICAL
    assert spec.tensors[f"{BLOCK}nextn.hc_head_norm.weight"].part.path.name == "draft.gguf"


def test_unknown_tensors_are_named() -> None:
    spec = read(WHOLE.without_draft(), WHOLE.draft_only().tensor("surprise", TensorSpec("surprise", (4,))))
    assert spec.warnings == ("1 tensor(s) in the file are not used: surprise",)
