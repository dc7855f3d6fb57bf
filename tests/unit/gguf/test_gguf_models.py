"""The real files of the repository: every oracle variant and the built-in model open, and give the spec they must."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from appliance.gguf.reader import GgufSet, open_set
from appliance.model.qwen4exp.spec import ModelSpec, read_spec

ROOT = Path(__file__).parents[3]
ORACLE = ROOT / "tests" / "oracle"
BUILTIN = ROOT / "appliance" / "data" / "strata-tiny.gguf"
MODELS = (
    "base4/model.gguf",
    "base4/model-q8_0-split-00001-of-00005.gguf",
    "hc2/model.gguf",
    "hc2/model-q8_0-fused.gguf",
    "moe32/model.gguf",
    "realhead/model.gguf",
)


@pytest.mark.parametrize("name", MODELS)
def test_an_oracle_gives_the_sizes_of_its_configuration(name: str) -> None:
    path = ORACLE / name
    config = json.loads((path.parent / "config.json").read_text())["config"]
    model = open_set(path)
    spec = read_spec(model)
    facts = {
        "hidden": spec.hidden,
        "layers": spec.trunk_layers,
        "q_heads": spec.query_heads,
        "kv_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "theta": spec.rope_theta,
        "gk": spec.gdn_key_heads,
        "gv": spec.gdn_value_heads,
        "gdim": spec.gdn_head_dim,
        "gconv": spec.conv_kernel,
        "experts": spec.experts,
        "topk": spec.experts_used,
        "ff": spec.expert_ff,
        "shared_ff": spec.shared_ff,
        "hc": spec.streams,
        "lowrank": spec.low_rank,
        "idx_heads": spec.indexer_heads,
        "idx_dim": spec.indexer_dim,
        "budget": spec.indexer_budget,
        "ratio": spec.block_tokens,
        "vocab": spec.vocabulary,
    }
    assert facts == {key: config[key] for key in facts}
    assert list(spec.rope_sections) == config["mrope"]
    assert spec.rope_dims == config["rotary"] * config["head_dim"]
    assert spec.rms_eps == pytest.approx(config["eps"])
    assert spec.full_attention == tuple((n + 1) % config["interval"] == 0 for n in range(config["layers"]))
    check_ngram(spec, config)
    assert spec.has_draft
    assert spec.draft_note is None
    assert spec.warnings == ()
    model.close()


def check_ngram(spec: ModelSpec, config: dict[str, object]) -> None:
    ngram = spec.ngram
    assert ngram is not None
    assert [ngram.layer + 1] == config["ple"]
    assert (ngram.order, ngram.heads_per_order) == (config["ngram"], config["hpn"])
    assert (ngram.conv_kernel, ngram.width) == (config["ple_kernel"], config["ple_dim"])
    assert ngram.reset_token_id == config["eos"]
    assert len(ngram.multipliers) == ngram.order
    assert len(ngram.head_rows) == len(ngram.head_offsets) == ngram.heads


@pytest.mark.parametrize("name", [*MODELS, "base4/draft-only.gguf"])
def test_directory_and_bytes_equal_the_gguf_packages(name: str) -> None:
    model = open_set(ORACLE / name)
    for part in model.parts:
        for theirs in gguf.GGUFReader(part.path).tensors:
            ours = model.tensors[theirs.name]
            assert ours.part is part
            assert list(ours.shape) == [int(n) for n in reversed(theirs.shape)]
            assert (ours.type.name, ours.byte_count) == (theirs.tensor_type.name, theirs.n_bytes)
            assert ours.offset == theirs.data_offset
            assert np.array_equal(ours.raw(), np.asarray(theirs.data).reshape(-1).view(np.uint8))
    model.close()


def test_the_fused_variant_keeps_its_experts_fused() -> None:
    model = open_set(ORACLE / "hc2" / "model-q8_0-fused.gguf")
    tensors = read_spec(model).tensors
    assert any(name.endswith("ffn_gate_up_exps.weight") for name in tensors)
    model.close()


def test_a_model_without_image_id_hashes_the_reset_id() -> None:
    model = open_set(ORACLE / "base4" / "model-q8_0-split-00003-of-00005.gguf")
    ngram = read_spec(model).ngram
    assert ngram is not None
    assert ngram.image_token_id == ngram.reset_token_id == 271
    model.close()


def test_the_draft_only_oracle_joins_its_trunk() -> None:
    trunk, draft = open_set(ORACLE / "base4" / "model.gguf"), open_set(ORACLE / "base4" / "draft-only.gguf")
    inside, joined = read_spec(trunk), read_spec(trunk, draft=draft)
    assert joined.has_draft
    assert joined.tensors.keys() == inside.tensors.keys()
    assert {t.part for n, t in joined.tensors.items() if n.startswith("blk.4.")} == {draft.parts[0]}
    assert "draft block of its own, which is not used" in joined.warnings[0]
    trunk.close()
    draft.close()


@pytest.fixture
def builtin() -> GgufSet:
    return open_set(BUILTIN)


def test_the_builtin_model_has_no_warning(builtin: GgufSet) -> None:
    spec = read_spec(builtin)
    assert spec.warnings == ()
    assert spec.name == "Strata Tiny"
    assert spec.has_draft
    assert (spec.trunk_layers, spec.hidden, spec.experts, spec.vocabulary) == (8, 256, 32, 8192)
    assert spec.context_tokens == 4096
    assert spec.stop_token_ids == {8176, 8178}
    assert spec.sampling.temperature == pytest.approx(0.6)
    assert spec.sampling.top_p == pytest.approx(0.9)
    assert (spec.sampling.top_k, spec.sampling.min_p) == (20, None)
    assert len(spec.tensors) == 246


def test_the_builtin_model_opens_at_once() -> None:
    started = time.process_time()
    model = open_set(BUILTIN)
    read_spec(model)
    assert time.process_time() - started < 0.1
    model.close()


def test_neither_torch_nor_numpy_is_needed_to_read_a_spec() -> None:
    code = (
        "import sys; from pathlib import Path; from appliance.gguf.reader import open_set;"
        "from appliance.model.qwen4exp.spec import read_spec;"
        f"read_spec(open_set(Path({str(BUILTIN)!r})));"
        "print([m for m in ('torch', 'numpy', 'gguf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
