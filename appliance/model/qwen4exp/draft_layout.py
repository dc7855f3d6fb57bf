"""Finds the draft block in its known layouts and gives its tensors their canonical names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from appliance.gguf.metadata import Metadata
from appliance.gguf.reader import GgufSet, TensorInfo
from appliance.model import architecture
from appliance.model.qwen4exp.hyperparameters import MAX_BLOCKS, Hyperparameters
from appliance.model.qwen4exp.spec_layers import blocks_present, number_ranges
from appliance.model.qwen4exp.spec_problems import Keys, Problems
from appliance.model.qwen4exp.spec_tensors import MIXER, Table, draft_rules, has_halves, is_fused

# Other writers' names -> ours, without the block prefix.
_ALIASES: Final = {
    "nextn.hc_norm.weight": MIXER[0],
    "nextn.hc_down.weight": MIXER[1],
    "nextn.hc_up.weight": MIXER[2],
}
# Older draft-only files: the mixer under the trunk's names.
_LEGACY_MIXER: Final = {
    "output_hc_norm.weight": MIXER[0],
    "output_hc_down.weight": MIXER[1],
    "output_hc_up.weight": MIXER[2],
}
# Copies of what the trunk has; the draft borrows the trunk's.
_SHARED: Final = ("token_embd.weight", "output.weight")
# An embedding and a head of the draft block's own: this model family shares the trunk's, so they are not used.
_PRIVATE: Final = ("nextn.embed_tokens.weight", "nextn.shared_head_head.weight")
# A draft works beside a trunk only when both agree on these.
_SAME_KEYS: Final = (
    "embedding_length",
    "hyper_connection.count",
    "hyper_connection.low_rank",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.indexer.head_count",
    "attention.indexer.key_length",
    "rope.dimension_count",
    "rope.freq_base",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
)


@dataclass(frozen=True)
class DraftBlock:
    """What was found.

    Attributes:
        tensors: by canonical name, `blk.{trunk_layers}.*`; empty when there is no usable draft block.
        note: why there is no drafting; None when there is.
        warnings: sentences for the log.
        unused: names in the files that nothing takes.
    """

    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)
    note: str | None = None
    warnings: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


def find_draft(
    model: GgufSet, h: Hyperparameters, problems: Problems, *, draft: GgufSet | None, declared: bool
) -> DraftBlock:
    """Finds the draft block in the model or in its companion file.

    Args:
        model: the trunk's set.
        h: the trunk's sizes, which the draft must share.
        problems: contradictions inside the model file are added here.
        draft: the companion; wins over a block inside the model.
        declared: whether the model's `nextn_predict_layers` is 1.

    Raises:
        ModelFileError: contradictions inside the companion, all in one message.
    """
    prefix = f"blk.{h.trunk_layers}."
    inside = {n: t for n, t in model.tensors.items() if n.startswith(prefix)} if declared else {}
    if draft is not None:
        found = _from_companion(draft, h)
        if not inside:
            return found
        warning = f"{model.where} has a draft block of its own, which is not used: {draft.where} was given"
        return replace(found, warnings=(*found.warnings, warning))
    if not declared:
        return DraftBlock(note="the model file has no draft block (qwen4exp.nextn_predict_layers is absent or 0)")
    if not inside:
        return DraftBlock(note=f"the model file announces a draft block and holds no tensor of it ({prefix}*)")
    named = _rename({n.removeprefix(prefix): t for n, t in inside.items()}, _ALIASES, problems)
    if set(_missing(named, h)) == set(MIXER):
        note = f"the draft block lacks its mixer ({prefix}{{{', '.join(MIXER)}}}), as an old converter wrote it"
        return DraftBlock(note=note, warnings=(f"drafting is off: {note}; use a newer file",), unused=())
    return _take(named, h, problems)


def _from_companion(draft: GgufSet, h: Hyperparameters) -> DraftBlock:
    architecture(draft.metadata)
    problems = Problems(draft.where)
    _check_metadata(draft.metadata, h, problems)
    reduced = [n for n in draft.tensors if "d2t" in n.split(".") or "t2d" in n.split(".")]
    if reduced:
        problems.add(f"tensor {reduced[0]:.80} belongs to a draft head with a reduced vocabulary; not supported")
    blocks = blocks_present(draft.tensors)
    wanted = {n for n in blocks if any(t.startswith(f"blk.{n}.nextn.") for t in draft.tensors)}
    if len(wanted) != 1:
        problems.add(
            f"the file holds blocks {number_ranges(blocks) or 'none'}, {len(wanted)} of them with nextn tensors; "
            f"a draft file must have exactly one"
        )
        problems.raise_if_any()
    number = wanted.pop()
    blocks_stated = Keys(draft.metadata, problems).count(
        "qwen4exp.block_count", high=MAX_BLOCKS, default=h.trunk_layers + 1
    )
    if number != blocks_stated - 1 or number != h.trunk_layers:
        problems.add(
            f"the draft block is blk.{number} and qwen4exp.block_count is {blocks_stated}; for this model with "
            f"{h.trunk_layers} trunk layers they must be blk.{h.trunk_layers} and {h.trunk_layers + 1}"
        )
    found = _companion_tensors(draft, h, number, has_trunk=len(blocks) > 1, problems=problems)
    problems.raise_if_any()
    return found


def _companion_tensors(
    draft: GgufSet, h: Hyperparameters, number: int, *, has_trunk: bool, problems: Problems
) -> DraftBlock:
    prefix = f"blk.{number}."
    named = {n.removeprefix(prefix): t for n, t in draft.tensors.items() if n.startswith(prefix)}
    others = {n: t for n, t in draft.tensors.items() if not n.startswith("blk.")}
    if not has_trunk:
        named |= {n: t for n, t in others.items() if n in _LEGACY_MIXER}
        for name in set(_SHARED) & set(others):
            if others[name].shape != (h.vocabulary, h.hidden):
                problems.add(
                    f"tensor {name} has shape {list(others[name].shape)}; it must be {[h.vocabulary, h.hidden]} like "
                    f"the model's (draft heads with a reduced vocabulary are not supported)"
                )
        unused = [n for n in others if n not in _LEGACY_MIXER and n not in _SHARED]
    else:
        unused = []
    found = _take(_rename(named, _ALIASES | _LEGACY_MIXER, problems), h, problems)
    return replace(found, unused=(*found.unused, *unused))


def _check_metadata(metadata: Metadata, h: Hyperparameters, problems: Problems) -> None:
    keys = Keys(metadata, problems, prefix="qwen4exp.")
    keys.count("nextn_predict_layers", low=1, high=1, default=1)
    expected: dict[str, float] = dict(
        zip(
            _SAME_KEYS,
            (
                h.hidden,
                h.streams,
                h.low_rank,
                h.query_heads,
                h.kv_heads,
                h.head_dim,
                h.head_dim,
                h.indexer_heads,
                h.indexer_dim,
                h.rope_dims,
                h.rope_theta,
                h.experts,
                h.experts_used,
                h.expert_ff,
                h.shared_ff,
            ),
            strict=True,
        )
    )
    for key, value in expected.items():
        if f"qwen4exp.{key}" not in metadata:
            continue
        found = keys.number(key, low=0.0, high=1e12) if key == "rope.freq_base" else keys.same(key)
        if found != value:
            problems.add(f"qwen4exp.{key} is {found:g} and {value:g} in the model; the draft must be made for it")
    tokens = metadata.strings("tokenizer.ggml.tokens", None)
    if tokens is not None and len(tokens) != h.vocabulary:
        problems.add(f"tokenizer.ggml.tokens has {len(tokens)} entries and {h.vocabulary} in the model")


def _rename(tensors: Mapping[str, TensorInfo], aliases: Mapping[str, str], problems: Problems) -> dict[str, TensorInfo]:
    named: dict[str, TensorInfo] = {}
    for name, tensor in tensors.items():
        canonical = aliases.get(name, name)
        if canonical in named:
            problems.add(f"tensor {name} and another one both are the draft block's {canonical}; one of them must go")
        named[canonical] = tensor
    return named


def _missing(named: Mapping[str, TensorInfo], h: Hyperparameters) -> list[str]:
    rules = draft_rules(h, fused=is_fused(named, ""), halves=has_halves(named, ""))
    return [n for n, rule in rules.items() if n not in named and not rule.optional]


def _take(named: Mapping[str, TensorInfo], h: Hyperparameters, problems: Problems) -> DraftBlock:
    rules = draft_rules(h, fused=is_fused(named, ""), halves=has_halves(named, ""))
    missing = _missing(named, h)
    if missing:
        needed = sum(not rule.optional for rule in rules.values())
        problems.add(
            f"the draft block holds {needed - len(missing)} of its {needed} tensors; missing: {', '.join(missing)} "
            f"(a partial draft block is never used)"
        )
        return DraftBlock()
    private = [n for n in _PRIVATE if n in named]
    for name in private:
        if named[name].shape != (h.vocabulary, h.hidden):
            problems.add(
                f"tensor {name} has shape {list(named[name].shape)}; it must be {[h.vocabulary, h.hidden]} "
                "(draft heads with a reduced vocabulary are not supported)"
            )
    prefix = f"blk.{h.trunk_layers}."
    table = Table({prefix + n: t for n, t in named.items()})
    table.take(rules, block=h.trunk_layers)
    table.report(problems)
    warning = (
        f"the draft block's own {' and '.join(private)} not used: it borrows the trunk's, so fewer drafts may hold"
    )
    unused = tuple(prefix + n for n in named if n not in rules and n not in private)
    return DraftBlock(tensors=table.taken, warnings=(warning,) if private else (), unused=unused)
