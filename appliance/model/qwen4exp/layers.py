"""Weights of one layer of the CPU path, laid out so that a layer needs few products."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from kernels.block.op import (
    ATTENTION_BLOCK,
    EXPERT_BLOCK,
    LINEAR_BLOCK,
    AttentionBlock,
    AttentionWeights,
    ExpertBlock,
    LinearBlock,
)
from kernels.compiled.arrays import Floats, Integers
from kernels.compiled.record import record
from kernels.gdn.op import GdnWeights
from kernels.hyper.op import ReadWeights
from kernels.moe.op import ExpertWeights, MixWeights
from kernels.ngram.op import PleWeights


class TouchedExperts(Protocol):
    """Routed experts that are fetched when a window touches them."""

    def add(self, x: Floats, ids: Integers, shares: Floats, out: Floats) -> None:
        """Adds the chosen experts' weighted sum to out: x and out [rows, hidden], ids and shares [rows, used]."""
        ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer: a mixer and experts, each with its read of the streams, and perhaps the n-gram embedding before.

    The records are the same arrays as compiled blocks are told them: an ATTENTION_BLOCK, or a LINEAR_BLOCK; an
    EXPERT_BLOCK, or none where experts are fetched.
    """

    mixer_read: ReadWeights
    mixer: GdnWeights | AttentionWeights
    moe_read: ReadWeights
    mix: MixWeights
    experts: ExpertWeights | TouchedExperts
    ple: PleWeights | None
    mixer_record: Integers = field(init=False)
    expert_record: Integers | None = field(init=False)

    def __post_init__(self) -> None:
        """Writes the records."""
        if isinstance(self.mixer, GdnWeights):
            mixer = record(LinearBlock(self.mixer_read, self.mixer), LINEAR_BLOCK)
        else:
            mixer = record(AttentionBlock(self.mixer_read, self.mixer), ATTENTION_BLOCK)
        object.__setattr__(self, "mixer_record", mixer)
        experts = None
        if isinstance(self.experts, ExpertWeights):
            experts = record(ExpertBlock(self.moe_read, self.mix, self.experts), EXPERT_BLOCK)
        object.__setattr__(self, "expert_record", experts)
