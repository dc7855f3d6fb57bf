"""Weights of one layer, laid out so that a layer needs few products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.hyper import ReadWeights
from kernels.ngram import GateWeights


class Experts(Protocol):
    """The routed experts of a layer."""

    def run(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Weighted sum of the chosen experts: x [rows, hidden], ids and weights [rows, used] -> [rows, hidden]."""
        ...


@dataclass(frozen=True, slots=True)
class GdnWeights:
    """Gated DeltaNet.

    Attributes:
        mix: [hidden, qkv | gate | alpha | beta].
        conv: [taps, qkv channels].
        rate: [heads]: -exp(A).
        bias: [heads]: of the time step.
        norm: [dim].
        out: [heads * dim, hidden].
    """

    mix: torch.Tensor
    conv: torch.Tensor
    rate: torch.Tensor
    bias: torch.Tensor
    norm: torch.Tensor
    out: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Full attention with its indexer.

    Attributes:
        mix: [hidden, queries | keys | values | gates | indexer queries | indexer key]; the draft layer has no indexer.
        norm: [query heads + kv heads, dim]; the queries' rows carry the 1/sqrt(dim) of the scores.
        index_query_norm: [indexer dim], empty without an indexer.
        index_key_norm: the same.
        out: [query heads * dim, hidden].
    """

    mix: torch.Tensor
    norm: torch.Tensor
    index_query_norm: torch.Tensor
    index_key_norm: torch.Tensor
    out: torch.Tensor


@dataclass(frozen=True, slots=True)
class MoeWeights:
    """Experts.

    Attributes:
        mix: [hidden, router | shared expert's scalar gate | shared gate | shared up].
        shared_down: [shared ff, hidden].
        experts: the routed ones.
    """

    mix: torch.Tensor
    shared_down: torch.Tensor
    experts: Experts


@dataclass(frozen=True, slots=True)
class PleWeights:
    """N-gram embedding: the gate, and the convolution [taps, streams * hidden]."""

    gate: GateWeights
    conv: torch.Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One block."""

    mixer_read: ReadWeights
    mixer: GdnWeights | AttentionWeights
    moe_read: ReadWeights
    moe: MoeWeights
    ple: PleWeights | None


@dataclass(frozen=True, slots=True)
class DraftEntry:
    """How a draft row begins.

    Attributes:
        token_norm: [hidden].
        state_norm: [streams, hidden].
        from_token: [hidden, hidden].
        from_state: [hidden, hidden].
    """

    token_norm: torch.Tensor
    state_norm: torch.Tensor
    from_token: torch.Tensor
    from_state: torch.Tensor
