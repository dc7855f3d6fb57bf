"""The tensors a qwen4exp model must have, their shapes, and the check of a file's tensors against them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from appliance.gguf.reader import TensorInfo
from appliance.model.qwen4exp.hyperparameters import Hyperparameters
from appliance.model.qwen4exp.spec_layers import number_ranges
from appliance.model.qwen4exp.spec_problems import Problems

TABLE: Final = "per_layer_token_embd.weight"
MIXER: Final = ("nextn.hc_head_norm.weight", "nextn.hc_head_down.weight", "nextn.hc_head_up.weight")
_JOINED: Final = "nextn.eh_proj.weight"
_HALVES: Final = ("nextn.fc_embd.weight", "nextn.fc_hidden.weight")


@dataclass(frozen=True)
class Rule:
    """What a tensor must look like.

    Attributes:
        shape: outermost dimension first.
        exact: whether the shape must be this one; else only the number of weights (norms and convolutions are
            stored in several ranks).
        optional: whether it may be absent.
    """

    shape: tuple[int, ...]
    exact: bool = True
    optional: bool = False


Rules = dict[str, Rule]


def global_rules(h: Hyperparameters) -> Rules:
    """Tensors outside the blocks; an absent `output.weight` is tied to `token_embd.weight`."""
    return {
        "token_embd.weight": Rule((h.vocabulary, h.hidden)),
        "output.weight": Rule((h.vocabulary, h.hidden), optional=True),
        "output_hc_norm.weight": Rule((h.wide,), exact=False),
        "output_hc_down.weight": Rule((h.low_rank, h.wide)),
        "output_hc_up.weight": Rule((h.wide, h.low_rank)),
    }


def block_rules(h: Hyperparameters, *, full: bool, fused: bool) -> Rules:
    """Tensors of one block, trunk or draft, without the prefix.

    Args:
        h: sizes.
        full: full attention; else linear.
        fused: routed gate and up projections in one tensor.
    """
    rules: Rules = {}
    for part in ("attn", "ffn"):
        rules[f"hc_{part}_norm.weight"] = Rule((h.wide,), exact=False)
        rules[f"hc_{part}_down.weight"] = Rule((h.low_rank, h.wide))
        rules[f"hc_{part}_up.weight"] = Rule((h.wide, h.low_rank))
        rules[f"hc_{part}_inject.weight"] = Rule((h.streams, h.wide))
    return rules | (_full_rules(h) if full else _linear_rules(h)) | _expert_rules(h, fused=fused)


def _full_rules(h: Hyperparameters) -> Rules:
    return {
        "attn_q.weight": Rule((2 * h.query_heads * h.head_dim, h.hidden)),
        "attn_k.weight": Rule((h.kv_heads * h.head_dim, h.hidden)),
        "attn_v.weight": Rule((h.kv_heads * h.head_dim, h.hidden)),
        "attn_output.weight": Rule((h.hidden, h.query_heads * h.head_dim)),
        "attn_q_norm.weight": Rule((h.head_dim,), exact=False),
        "attn_k_norm.weight": Rule((h.head_dim,), exact=False),
        "indexer.q_proj.weight": Rule((h.indexer_heads * h.indexer_dim, h.hidden)),
        "indexer.k_proj.weight": Rule((h.indexer_dim, h.hidden)),
        "indexer.q_norm.weight": Rule((h.indexer_dim,), exact=False),
        "indexer.k_norm.weight": Rule((h.indexer_dim,), exact=False),
    }


def _linear_rules(h: Hyperparameters) -> Rules:
    return {
        "attn_qkv.weight": Rule((h.gdn_qkv_width, h.hidden)),
        "attn_gate.weight": Rule((h.gdn_value_width, h.hidden)),
        "ssm_alpha.weight": Rule((h.gdn_value_heads, h.hidden)),
        "ssm_beta.weight": Rule((h.gdn_value_heads, h.hidden)),
        "ssm_a": Rule((h.gdn_value_heads,), exact=False),
        "ssm_dt.bias": Rule((h.gdn_value_heads,), exact=False),
        "ssm_conv1d.weight": Rule((h.gdn_qkv_width, h.conv_kernel), exact=False),
        "ssm_norm.weight": Rule((h.gdn_head_dim,), exact=False),
        "ssm_out.weight": Rule((h.hidden, h.gdn_value_width)),
    }


def _expert_rules(h: Hyperparameters, *, fused: bool) -> Rules:
    one = Rule((h.experts, h.expert_ff, h.hidden))
    both = {"ffn_gate_up_exps.weight": Rule((h.experts, 2 * h.expert_ff, h.hidden))}
    return {
        "ffn_gate_inp.weight": Rule((h.experts, h.hidden)),
        **(both if fused else {"ffn_gate_exps.weight": one, "ffn_up_exps.weight": one}),
        "ffn_down_exps.weight": Rule((h.experts, h.hidden, h.expert_ff)),
        "ffn_gate_inp_shexp.weight": Rule((h.hidden,), exact=False),
        "ffn_gate_shexp.weight": Rule((h.shared_ff, h.hidden)),
        "ffn_up_shexp.weight": Rule((h.shared_ff, h.hidden)),
        "ffn_down_shexp.weight": Rule((h.hidden, h.shared_ff)),
    }


def ngram_rules(h: Hyperparameters) -> Rules:
    """Tensors of the n-gram layer's block besides those of every block; the table itself is checked by rows."""
    if h.ngram is None:
        return {}
    return {
        "ple_key.weight": Rule((h.wide, h.ngram.width)),
        "ple_value.weight": Rule((h.hidden, h.ngram.width)),
        "ple_norm_key.weight": Rule((h.wide,), exact=False),
        "ple_norm_query.weight": Rule((h.wide,), exact=False),
        "ple_norm_conv.weight": Rule((h.wide,), exact=False),
        "ple_conv1d.weight": Rule((h.wide, h.ngram.conv_kernel), exact=False),
    }


def draft_rules(h: Hyperparameters, *, fused: bool, halves: bool) -> Rules:
    """Tensors of the draft block: a full-attention block, the input projection, and the draft's own mixer.

    Args:
        h: sizes.
        fused: see `block_rules`.
        halves: the input projection is stored as its embedding and its hidden half.
    """
    joined = {_JOINED: Rule((h.hidden, 2 * h.hidden))}
    return {
        **block_rules(h, full=True, fused=fused),
        "nextn.enorm.weight": Rule((h.hidden,), exact=False),
        "nextn.hnorm.weight": Rule((h.wide,), exact=False),
        **(dict.fromkeys(_HALVES, Rule((h.hidden, h.hidden))) if halves else joined),
        "nextn.hc_head_norm.weight": Rule((h.wide,), exact=False),
        "nextn.hc_head_down.weight": Rule((h.low_rank, h.wide)),
        "nextn.hc_head_up.weight": Rule((h.wide, h.low_rank)),
    }


def is_fused(tensors: Mapping[str, TensorInfo], prefix: str) -> bool:
    """Whether a block holds the routed gate and up projections in one tensor."""
    return f"{prefix}ffn_gate_up_exps.weight" in tensors


def has_halves(tensors: Mapping[str, TensorInfo], prefix: str) -> bool:
    """Whether a draft block holds its input projection as two tensors."""
    return any(prefix + name in tensors for name in _HALVES)


@dataclass
class Table:
    """Takes a file's tensors by rule, and groups what is wrong by tensor so that 48 equal faults are one sentence."""

    tensors: Mapping[str, TensorInfo]
    taken: dict[str, TensorInfo] = field(default_factory=dict)
    _faults: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def take(self, rules: Rules, *, block: int | None = None) -> None:
        """Takes every tensor of the rules; an absent or ill-shaped one becomes a fault."""
        prefix = "" if block is None else f"blk.{block}."
        for name, rule in rules.items():
            tensor = self.tensors.get(prefix + name)
            if tensor is not None:
                fault = shape_fault(name, tensor, rule)
                self.taken[prefix + name] = tensor if rule.exact else replace(tensor, shape=rule.shape)
            else:
                fault = None if rule.optional else f"is missing; its shape must be {list(rule.shape)}"
            if fault is not None:
                self._faults.setdefault((name, fault), []).append(-1 if block is None else block)

    def report(self, problems: Problems) -> None:
        """Adds one sentence for each kind of fault."""
        for (name, fault), blocks in self._faults.items():
            many = f" (blocks {number_ranges(blocks)})" if len(blocks) > 1 else ""
            prefix = "" if blocks[0] < 0 else f"blk.{'N' if many else blocks[0]}."
            problems.add(f"tensor {prefix}{name}{many} {fault}")


def shape_fault(name: str, tensor: TensorInfo, rule: Rule) -> str | None:
    """What is wrong with a tensor's shape; None when nothing is. Shapes are outermost first."""
    same_count = math.prod(tensor.shape) == math.prod(rule.shape)
    same_rows = len(rule.shape) == 1 or tensor.shape[-1] == rule.shape[-1]
    if tensor.shape == rule.shape or (not rule.exact and same_count and same_rows):
        return None
    fault = f"has shape {list(tensor.shape)}; it must be {list(rule.shape)}"
    if name == "ffn_down_exps.weight" and tensor.shape[-1] > rule.shape[-1]:
        fault += " (experts padded beyond qwen4exp.expert_feed_forward_length, as some forks write, are not supported)"
    if name == "token_embd.weight" and tensor.shape[-1] == rule.shape[-1]:
        fault += " (one row for each entry of tokenizer.ggml.tokens)"
    return fault


def check_ngram_table(h: Hyperparameters, tensors: Mapping[str, TensorInfo], problems: Problems) -> None:
    """The n-gram table must hold every row that the hash heads can name."""
    if h.ngram is None:
        return
    rows = max(map(sum, zip(h.ngram.head_offsets, h.ngram.head_rows, strict=True)))
    table = tensors.get(TABLE)
    if table is None:
        problems.add(
            f"tensor {TABLE} (the n-gram table) is missing: expected at least {rows} rows of {h.ngram.row_width}, "
            f"found 0"
        )
    elif len(table.shape) != 2 or table.shape[1] != h.ngram.row_width:
        problems.add(
            f"tensor {TABLE} has shape {list(table.shape)}; it must have rows of {h.ngram.row_width} weights "
            f"(qwen4exp.embedding_length_per_layer_input)"
        )
    elif table.shape[0] < rows:
        problems.add(
            f"tensor {TABLE} has {table.shape[0]} rows; expected at least {rows}, the largest sum of "
            f"qwen4exp.ple.head_offsets and qwen4exp.ple.head_vocab_sizes"
        )
