"""Owns what the speed formulas need to know of a model and of a machine's cards."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from appliance.model.qwen4exp.footprint import NGRAM_TABLE
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.stage_footprint import ModelBytes
from appliance.rig.cards import Card
from appliance.rig.machine import Machine
from appliance.rig.rates import Reading
from appliance.window_cost import Lane, Load

FLOAT = 4
# Where nothing was measured: what is usual of a vendor's peak, and a PCIe 3.0 x16 slot.
PEAK_SHARE = 0.9
ASSUMED_LINK_GBPS, ASSUMED_VRAM_GBPS, ASSUMED_TFLOPS = 12.0, 400.0, 40.0
LINK_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Known:
    """A speed that is used, and how it is known: "measured", "advertised" or "assumed"."""

    value: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSpeeds:
    """Speeds of one card as the formulas use them."""

    vram_gbps: Known
    link_gbps: Known
    tflops: Known

    @property
    def source(self) -> str:
        """The weakest of the sources."""
        order = ("assumed", "advertised", "measured")
        return min((self.vram_gbps.source, self.link_gbps.source, self.tflops.source), key=order.index)


def card_speeds(machine: Machine, card: Card) -> CardSpeeds:
    """Measured where it was, else the vendor's figures, else what is usual."""
    rates = machine.rates.card(card.uuid)
    link = None if card.link is None else card.link.advertised_gbps
    read = Reading() if rates is None else rates.in_place_gbps
    if rates is not None and read.value is None:
        read = rates.to_card_gbps
    return CardSpeeds(
        vram_gbps=_known(rates.vram_gbps if rates else Reading(), card.peak_gbps, PEAK_SHARE, ASSUMED_VRAM_GBPS),
        link_gbps=_known(read, link, LINK_SHARE, ASSUMED_LINK_GBPS),
        tflops=_known(rates.tflops if rates else Reading(), card.peak_tflops, PEAK_SHARE, ASSUMED_TFLOPS),
    )


def reaches(machine: Machine, card: Card, other: Card) -> bool:
    """Whether a card was seen to write to another one, by writing and reading back."""
    rates = machine.rates.card(card.uuid)
    return rates is not None and other.uuid in rates.peers


def _known(measured: Reading, peak: float | None, share: float, assumed: float) -> Known:
    if measured.value:
        return Known(measured.value, "measured")
    return Known(peak * share, "advertised") if peak else Known(assumed, "assumed")


@functools.lru_cache(maxsize=16)
def load_of(spec: ModelSpec, *, draft: bool) -> Load:
    """What a window of this model moves; bytes as stored, which a card's form exceeds by a tenth or so."""
    trunk = {n: t for n, t in spec.tensors.items() if not n.startswith(f"blk.{spec.trunk_layers}.")}
    routed = [t for n, t in trunk.items() if "_exps." in n]
    dense = {n: t for n, t in trunk.items() if "_exps." not in n and n not in (NGRAM_TABLE, "token_embd.weight")}
    if "output.weight" not in trunk and "token_embd.weight" in trunk:
        dense["token_embd.weight"] = trunk["token_embd.weight"]  # the head reads it
    linear = spec.trunk_layers - sum(spec.full_attention)
    state = linear * spec.gdn_value_heads * spec.gdn_head_dim**2 * FLOAT
    expert_weights = sum(math.prod(t.shape) for t in routed) / spec.experts
    matrices = {n: t for n, t in dense.items() if n not in ("output.weight", "token_embd.weight")}
    weights = sum(math.prod(t.shape) for t in matrices.values()) + expert_weights * spec.experts_used
    one_expert = sum(t.byte_count for t in routed) / (spec.trunk_layers * spec.experts)
    head = dense.get("output.weight", spec.tensors["token_embd.weight"]).byte_count
    drafter = [t for n, t in spec.tensors.items() if n not in trunk and "_exps." not in n and ".indexer." not in n]
    return Load(
        layers=spec.trunk_layers,
        experts=spec.experts,
        experts_used=spec.experts_used,
        expert_bytes=one_expert,
        dense_bytes=sum(t.byte_count for t in dense.values()),
        state_bytes=2 * state,
        prompt_flop=2 * weights,
        draft=draft and spec.has_draft,
        draft_step_bytes=head + sum(t.byte_count for t in drafter) + spec.experts_used * one_expert,
        row_bytes=(spec.wide + spec.hidden) * FLOAT,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """A card's part of what windows move, 0 to 1: of the layers, of the dense bytes, of the recurrent states."""

    layers: float
    dense: float
    states: float


def shares_of(spec: ModelSpec, model: ModelBytes, layers: range) -> Shares:
    """The part of some layers; the head is with the last ones."""
    read = sum(model.dense[layers.start : layers.stop]) + (model.head if layers.stop == model.layers else 0)
    linear = [not full for full in spec.full_attention]
    return Shares(
        layers=len(layers) / model.layers,
        dense=read / max(1, sum(model.dense) + model.head),
        states=sum(linear[layers.start : layers.stop]) / max(1, sum(linear)),
    )


def lane(speeds: CardSpeeds, shares: Shares, *, cache_bytes: float, direct: bool = False) -> Lane:
    """A card as the formulas see it.

    Args:
        speeds: of the card.
        shares: what it computes.
        cache_bytes: for experts, as they are stored.
        direct: whether it reaches the next card.
    """
    return Lane(
        share=shares.layers,
        dense_share=shares.dense,
        state_share=shares.states,
        vram_gbps=speeds.vram_gbps.value,
        link_gbps=speeds.link_gbps.value,
        tflops=speeds.tflops.value,
        cache_bytes=cache_bytes,
        direct=direct,
    )
