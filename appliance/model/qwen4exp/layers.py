"""Weights of one layer of the CPU path, laid out so that a layer needs few products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kernels.block.op import AttentionWeights
from kernels.compiled.arrays import Floats, Integers
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
    """One layer: a mixer and experts, each with its read of the streams, and perhaps the n-gram embedding before."""

    mixer_read: ReadWeights
    mixer: GdnWeights | AttentionWeights
    moe_read: ReadWeights
    mix: MixWeights
    experts: ExpertWeights | TouchedExperts
    ple: PleWeights | None
