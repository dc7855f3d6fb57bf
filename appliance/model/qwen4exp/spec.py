"""Metadata and tensor table of a qwen4exp GGUF -> ModelSpec: what the model is, without a byte of its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final

from appliance.gguf.metadata import Metadata
from appliance.gguf.reader import GgufSet, TensorInfo
from appliance.model import architecture
from appliance.model.qwen4exp.draft_layout import find_draft
from appliance.model.qwen4exp.hyperparameters import Hyperparameters, NgramSpec, read_hyperparameters
from appliance.model.qwen4exp.spec_checks import check_hyperparameters, check_indexer
from appliance.model.qwen4exp.spec_layers import check_blocks, layer_kinds, read_block_tokens
from appliance.model.qwen4exp.spec_problems import Problems
from appliance.model.qwen4exp.spec_tensors import (
    TABLE,
    Table,
    block_rules,
    check_ngram_table,
    global_rules,
    is_fused,
    ngram_rules,
)
from appliance.model.qwen4exp.spec_warnings import structural_warning, unused_warning

__all__ = ["ModelSpec", "NgramSpec", "SamplingDefaults", "read_spec"]

_STOP_KEYS: Final = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
_STOP_TEXTS: Final = frozenset({"<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"})


@dataclass(frozen=True, kw_only=True)
class SamplingDefaults:
    """What the file recommends (`general.sampling.*`); None where it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelSpec(Hyperparameters):
    """A model that can be placed and computed; equal to itself only, so that what is derived from it can be kept.

    Attributes:
        name: `general.name`, or the file's name.
        size_label: `general.size_label`, or empty.
        has_draft: whether the draft block can be used; its tensors are `blk.{trunk_layers}.*`.
        draft_note: why there is no drafting; None when there is.
        full_attention: for each trunk layer, whether it is full attention (else linear).
        block_tokens: r, tokens of one indexer block.
        stop_token_ids: ids that end a chat turn.
        sampling: the file's own defaults.
        hnorm_grouped: whether `nextn.hnorm` normalises each stream on its own; False: all streams at once.
        tensors: every tensor that is used, by canonical name. Norms and convolutions may have any shape with the
            right number of weights.
        warnings: sentences for the log: odd, and yet not refused.
    """

    name: str
    size_label: str
    has_draft: bool
    draft_note: str | None
    full_attention: tuple[bool, ...]
    block_tokens: int
    stop_token_ids: frozenset[int]
    sampling: SamplingDefaults
    tensors: Mapping[str, TensorInfo]
    warnings: tuple[str, ...]
    hnorm_grouped: bool = False

    def __eq__(self, other: object) -> bool:
        return self is other  # not the hyperparameters' own, which two sizes of a model share

    def __hash__(self) -> int:
        return id(self)


def read_spec(model: GgufSet, *, draft: GgufSet | None = None, block_tokens: int | None = None) -> ModelSpec:
    """Reads and checks the model.

    Args:
        model: the trunk, with or without a draft block inside.
        draft: a companion file with the draft block.
        block_tokens: used instead of the file's `attention.compress_ratios` where those are wrong.

    Raises:
        ModelFileError: every contradiction found, in one message; each names key or tensor, value and rule.
    """
    architecture(model.metadata)
    metadata, problems = model.metadata, Problems(model.where)
    h = read_hyperparameters(metadata, problems, has_ngram_table=TABLE in model.tensors)
    declared = metadata.int_("qwen4exp.nextn_predict_layers", 0) == 1
    check_hyperparameters(h, metadata, problems)
    if not check_blocks(model.tensors, problems, trunk_layers=h.trunk_layers, has_draft=declared):
        problems.raise_if_any()
    kinds = layer_kinds(metadata, model.tensors, problems, trunk_layers=h.trunk_layers)
    if block_tokens is None:
        block_tokens = read_block_tokens(metadata, kinds, problems, block_count=h.trunk_layers + declared)
    check_indexer(h, kinds, block_tokens, problems)
    tensors = _take_trunk(model.tensors, h, kinds, problems)
    found = find_draft(model, h, problems, draft=draft, declared=declared)
    problems.raise_if_any()
    tensors |= found.tensors
    sampling, odd = _read_sampling(metadata)
    unused = (*_unused_tensors(model, tensors, h), *found.unused)
    return ModelSpec(
        **{f.name: getattr(h, f.name) for f in fields(h)},
        name=metadata.str_("general.name", "") or model.parts[0].path.stem,
        size_label=metadata.str_("general.size_label", ""),
        has_draft=bool(found.tensors),
        draft_note=found.note,
        full_attention=kinds,
        block_tokens=block_tokens,
        stop_token_ids=_stop_tokens(metadata, h),
        sampling=sampling,
        tensors=MappingProxyType(tensors),
        warnings=(
            *model.warnings,
            *(draft.warnings if draft is not None else ()),
            *found.warnings,
            *odd,
            *unused_warning(unused),
            *structural_warning(tensors),
        ),
    )


def _take_trunk(
    tensors: Mapping[str, TensorInfo], h: Hyperparameters, kinds: Sequence[bool], problems: Problems
) -> dict[str, TensorInfo]:
    table = Table(tensors)
    table.take(global_rules(h))
    for block, full in enumerate(kinds):
        table.take(block_rules(h, full=full, fused=is_fused(tensors, f"blk.{block}.")), block=block)
    if h.ngram is not None:
        table.take(ngram_rules(h), block=h.ngram.layer)
        check_ngram_table(h, tensors, problems)
        if TABLE in tensors:
            table.taken[TABLE] = tensors[TABLE]
    table.report(problems)
    return table.taken


def _unused_tensors(model: GgufSet, taken: Mapping[str, TensorInfo], h: Hyperparameters) -> tuple[str, ...]:
    """Names that nothing takes, besides the draft block's, for which `find_draft` answers."""
    return tuple(n for n in model.tensors if n not in taken and not n.startswith(f"blk.{h.trunk_layers}."))


def _stop_tokens(metadata: Metadata, h: Hyperparameters) -> frozenset[int]:
    """The file's own end tokens, the n-gram reset id, and the tokens that end a turn by their text."""
    found = {metadata.int_(key) for key in _STOP_KEYS if key in metadata}
    if h.ngram is not None:
        found.add(h.ngram.reset_token_id)
    tokens = metadata.strings("tokenizer.ggml.tokens")
    return frozenset(found | {n for n, text in enumerate(tokens) if text in _STOP_TEXTS})


def _read_sampling(metadata: Metadata) -> tuple[SamplingDefaults, tuple[str, ...]]:
    """The file's recommended sampling; a value that cannot be is left out with a warning."""
    warnings: list[str] = []

    def number(name: str, low: float, high: float) -> float | None:
        key = f"general.sampling.{name}"
        value = metadata.float_(key, None)
        if value is None or low <= value <= high:
            return value
        warnings.append(f"{metadata.where}: {key} is {value:g} and is ignored; it must be {low:g} to {high:g}")
        return None

    top_k = number("top_k", 0, 1 << 31)
    found = SamplingDefaults(
        temperature=number("temp", 0.0, 10.0),
        top_p=number("top_p", 1e-6, 1.0),
        top_k=None if top_k is None else int(top_k),
        min_p=number("min_p", 0.0, 1.0),
    )
    return found, tuple(warnings)
