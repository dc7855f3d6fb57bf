"""Rules between the keys of a qwen4exp model: each names the key, the value and what it must agree with."""

from __future__ import annotations

from typing import Final

from appliance.gguf.metadata import Metadata
from appliance.model.qwen4exp.hyperparameters import MAX_INT64, Hyperparameters, NgramSpec
from appliance.model.qwen4exp.spec_problems import Keys, Problems

_TOKEN_KEYS: Final = ("eos_token_id", "padding_token_id", "bos_token_id", "eot_token_id", "unknown_token_id")


def check_hyperparameters(h: Hyperparameters, metadata: Metadata, problems: Problems) -> None:
    """Adds every contradiction between keys. Shapes of tensors are `spec_tensors`'s to check."""
    _check_attention(h, metadata, problems)
    _check_linear(h, metadata, problems)
    if h.experts_used > h.experts:
        problems.add(
            f"qwen4exp.expert_used_count is {h.experts_used}; it must be 1 to qwen4exp.expert_count ({h.experts})"
        )
    _check_vocabulary(h, metadata, problems)
    if h.ngram is not None:
        _check_ngram(h, h.ngram, problems)


def check_indexer(h: Hyperparameters, full_attention: tuple[bool, ...], block_tokens: int, problems: Problems) -> None:
    """Adds contradictions that need the layer kinds: indexer budget, and the layer that the n-gram table feeds."""
    if h.indexer_budget % block_tokens:
        problems.add(
            f"qwen4exp.attention.indexer.top_k is {h.indexer_budget}; it must be a multiple of the block size "
            f"{block_tokens} (qwen4exp.attention.compress_ratios)"
        )
    if h.ngram is None:
        return
    if h.ngram.layer >= h.trunk_layers:
        problems.add(f"qwen4exp.ple.layers names layer {h.ngram.layer}; it must be 0 to {h.trunk_layers - 1}")
    elif full_attention[h.ngram.layer]:
        problems.add(f"qwen4exp.ple.layers names layer {h.ngram.layer}, a full-attention layer; it must be linear")


def _check_attention(h: Hyperparameters, metadata: Metadata, problems: Problems) -> None:
    if h.query_heads % h.kv_heads:
        problems.add(
            f"qwen4exp.attention.head_count is {h.query_heads}; it must be a multiple of "
            f"qwen4exp.attention.head_count_kv ({h.kv_heads})"
        )
    values = Keys(metadata, problems).count("qwen4exp.attention.value_length", default=h.head_dim)
    if values != h.head_dim:
        problems.add(
            f"qwen4exp.attention.value_length is {values}; it must equal qwen4exp.attention.key_length ({h.head_dim})"
        )
    limit = min(h.head_dim, h.indexer_dim)
    if h.rope_dims % 2 or h.rope_dims > limit:
        problems.add(
            f"qwen4exp.rope.dimension_count is {h.rope_dims}; it must be even and at most {limit} "
            f"(qwen4exp.attention.key_length and qwen4exp.attention.indexer.key_length)"
        )
    if sum(h.rope_sections) != h.rope_dims // 2:
        problems.add(
            f"qwen4exp.rope.dimension_sections is {list(h.rope_sections)}; its sum must be half of "
            f"qwen4exp.rope.dimension_count ({h.rope_dims})"
        )
    scaling = metadata.str_("qwen4exp.rope.scaling.type", "none")
    if scaling != "none":
        problems.add(f"qwen4exp.rope.scaling.type is {scaling!r:.40}; only 'none' is available in this version")


def _check_linear(h: Hyperparameters, metadata: Metadata, problems: Problems) -> None:
    if h.gdn_value_heads % h.gdn_key_heads:
        problems.add(
            f"qwen4exp.ssm.time_step_rank is {h.gdn_value_heads}; it must be a multiple of qwen4exp.ssm.group_count "
            f"({h.gdn_key_heads})"
        )
    inner = Keys(metadata, problems).count("qwen4exp.ssm.inner_size", default=h.gdn_value_width)
    if inner != h.gdn_value_width:
        problems.add(
            f"qwen4exp.ssm.inner_size is {inner}; it must be qwen4exp.ssm.time_step_rank x qwen4exp.ssm.state_size "
            f"({h.gdn_value_heads} x {h.gdn_head_dim} = {h.gdn_value_width})"
        )


def _check_vocabulary(h: Hyperparameters, metadata: Metadata, problems: Problems) -> None:
    keys = Keys(metadata, problems)
    stated = keys.count("qwen4exp.vocab_size", default=h.vocabulary)
    if stated != h.vocabulary:
        problems.add(f"qwen4exp.vocab_size is {stated}; tokenizer.ggml.tokens has {h.vocabulary} entries")
    for name in _TOKEN_KEYS:
        _check_token(f"tokenizer.ggml.{name}", keys.count(f"tokenizer.ggml.{name}", low=0, default=0), h, problems)


def _check_token(key: str, token: int, h: Hyperparameters, problems: Problems) -> None:
    if token >= h.vocabulary:
        problems.add(f"{key} is {token}; it must be below the {h.vocabulary} entries of tokenizer.ggml.tokens")


def _check_ngram(h: Hyperparameters, ngram: NgramSpec, problems: Problems) -> None:
    _check_token("qwen4exp.ple.eos_token_id", ngram.reset_token_id, h, problems)
    _check_token("qwen4exp.ple.image_token_id", ngram.image_token_id, h, problems)
    largest = max(ngram.multipliers) * (h.vocabulary - 1)
    if largest > MAX_INT64:
        problems.add(
            f"qwen4exp.ple.layer_multipliers contains {max(ngram.multipliers)}; times the largest token id "
            f"({h.vocabulary - 1}) it must stay below 2^63"
        )
