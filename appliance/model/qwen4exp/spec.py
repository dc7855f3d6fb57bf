"""Metadata and tensor table of a qwen4exp GGUF -> ModelSpec: what the model is, without a byte of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from appliance.gguf.reader import GgufSet, TensorInfo
from appliance.model.qwen4exp.hyperparameters import Hyperparameters, NgramSpec

__all__ = ["ModelSpec", "NgramSpec", "SamplingDefaults", "read_spec"]


@dataclass(frozen=True, kw_only=True)
class SamplingDefaults:
    """What the file recommends (`general.sampling.*`); None where it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Hyperparameters):
    """A model that can be placed and computed.

    Attributes:
        name: `general.name`, or the file's name.
        size_label: `general.size_label`, or empty.
        has_draft: whether the draft block can be used; its tensors are `blk.{trunk_layers}.*`.
        draft_note: why there is no drafting; None when there is.
        full_attention: for each trunk layer, whether it is full attention (else linear).
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
    stop_token_ids: frozenset[int]
    sampling: SamplingDefaults
    tensors: Mapping[str, TensorInfo]
    warnings: tuple[str, ...]
    hnorm_grouped: bool = False


def read_spec(model: GgufSet, *, draft: GgufSet | None = None, block_tokens: int | None = None) -> ModelSpec:
    """Reads and checks the model.

    Args:
        model: the trunk, with or without a draft block inside.
        draft: a companion file with the draft block.
        block_tokens: used instead of the file's `attention.compress_ratios` where those are wrong.

    Raises:
        ModelFileError: every contradiction found, in one message; each names key or tensor, value and rule.
    """
    raise NotImplementedError
