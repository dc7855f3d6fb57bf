"""Owns the speed formulas: bytes of a window against bandwidths; pure numbers in, estimates out.

Source: published measurements of this model on comparable servers. One window of b users with k drafts moves
GPU = dense + hits + b * state + drafter and HOST = misses; without overlap its time is GPU / VRAM + HOST / link, and it
yields A = (1 - p^(k+1)) / (1 - p) tokens for each user. Real engines reach a share of that limit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

USERS: Final = (1, 2, 4, 8)
ACCEPTANCE: Final = 0.7
# What published engines reach of the byte limit: 54 to 66% with one user.
DECODE_SHARE: Final = (0.50, 0.70)
# And of the prompt limit: 20 to 56%.
PROMPT_SHARE: Final = (0.20, 0.45)
# About 2,000 launches a window, at 1 microsecond each, are there whatever the bytes are.
LEAST_WINDOW_S: Final = 0.002
DRAFT_STEP_BYTES: Final = 300_000_000
DRAFT_USER_BYTES: Final = 20_000_000
# Measured: routing of neighbouring rows is correlated, so rows share experts more than chance would have it.
DRAFT_EXPONENT, USER_EXPONENT = 0.75, 0.8

# Share of routed experts found in VRAM against the share of all experts that is cached: (cached, least, most).
HITS: Final = (
    (0.0, 0.0, 0.0),
    (0.12, 0.56, 0.62),
    (0.20, 0.77, 0.85),
    (0.32, 0.83, 0.90),
    (0.52, 0.98, 0.99),
    (1.0, 1.0, 1.0),
)


@dataclass(frozen=True, slots=True)
class Span:
    """A range; `least` is what to count on."""

    least: float
    most: float

    @property
    def middle(self) -> float:
        """Half way."""
        return (self.least + self.most) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a model moves.

    Attributes:
        layers: of the trunk.
        experts, experts_used: of a layer, and of those the routed for one row.
        expert_bytes: one routed expert, on average.
        dense_bytes: read by every window, whatever its rows.
        state_bytes: read and written for each user in a window.
        prompt_flop: floating-point operations of one prompt token.
        draft: whether there is a draft layer.
    """

    layers: int
    experts: int
    experts_used: int
    expert_bytes: float
    dense_bytes: float
    state_bytes: float
    prompt_flop: float
    draft: bool

    @property
    def experts_bytes(self) -> float:
        """All routed experts."""
        return self.layers * self.experts * self.expert_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One card and its share of the layers.

    Attributes:
        share: of the model's layers, 0 to 1.
        vram_gbps: its memory.
        link_gbps: how quickly it reads pinned RAM.
        tflops: dense FP16 products.
        cache_bytes: experts that it holds.
    """

    share: float
    vram_gbps: float
    link_gbps: float
    tflops: float
    cache_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How windows are made: longest draft, drafts with several users, pipelined groups, prompt chunk, RAM bandwidth
    (None: not known, so it does not bind)."""

    draft_max: int
    batch_mtp: bool
    groups: int
    prompt_chunk: int
    ram_gbps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Estimates.

    Attributes:
        hits: share of routed experts found in VRAM.
        users: tokens a second in all, at each of USERS.
        prompt: prompt tokens a second.
        drafts: best draft length at each of USERS.
    """

    hits: Span
    users: tuple[Span, ...]
    prompt: Span
    drafts: tuple[int, ...]


def hit_share(cached: float) -> Span:
    """Expected hits when a share of all experts is cached, 0 to 1; straight lines between measurements."""
    x = min(max(cached, 0.0), 1.0)
    for (x0, low0, high0), (x1, low1, high1) in itertools.pairwise(HITS):
        if x <= x1:
            t = (x - x0) / (x1 - x0)
            return Span(low0 + t * (low1 - low0), high0 + t * (high1 - high0))
    return Span(1.0, 1.0)


def distinct_experts(load: Load, *, users: int, drafts: int) -> float:
    """Experts that a layer reads for one window: sublinear in rows, and no more than independent routing gives."""
    rows = users * (1 + drafts)
    chance = load.experts * (1 - (1 - load.experts_used / load.experts) ** rows)
    measured: float = load.experts_used * (1 + drafts) ** DRAFT_EXPONENT * users**USER_EXPONENT
    return min(measured, chance)


def tokens_a_window(drafts: int, acceptance: float = ACCEPTANCE) -> float:
    """Tokens that one user gains: the drawn one, and each draft that stands."""
    if acceptance >= 1:
        return 1.0 + drafts
    return float((1 - acceptance ** (drafts + 1)) / (1 - acceptance))


def window_s(load: Load, lane: Lane, *, users: int, drafts: int, hits: float, ram_gbps: float | None = None) -> float:
    """Seconds of one window on one card's layers, without overlap of VRAM and link."""
    routed = distinct_experts(load, users=users, drafts=drafts) * load.layers * load.expert_bytes * lane.share
    dense = (load.dense_bytes + users * load.state_bytes) * lane.share
    link = lane.link_gbps if ram_gbps is None else min(lane.link_gbps, ram_gbps)
    seconds = (dense + hits * routed) / (lane.vram_gbps * 1e9)
    return seconds + (0.0 if hits >= 1 else (1 - hits) * routed / (link * 1e9))


def limit(load: Load, lanes: Sequence[Lane], way: Way, *, users: int, drafts: int, hits: Sequence[float]) -> float:
    """Tokens a second that bytes and launches allow: one group at a time, or equal groups following each other."""
    groups = max(1, min(way.groups, users, len(lanes)))
    each = math.ceil(users / groups)
    stages = [
        window_s(load, lane, users=each, drafts=drafts, hits=share, ram_gbps=way.ram_gbps)
        for lane, share in zip(lanes, hits, strict=True)
    ]
    stages[-1] += drafts * (DRAFT_STEP_BYTES + DRAFT_USER_BYTES * each) / (lanes[-1].vram_gbps * 1e9)
    # A group leaves every `period`: no sooner than the slowest stage, nor than all groups' turns allow.
    period = max([*stages, sum(stages) / groups, LEAST_WINDOW_S / groups])
    return users / groups * tokens_a_window(drafts) / period


def estimate(load: Load, lanes: Sequence[Lane], way: Way) -> Speed:
    """Speeds of a plan.

    Args:
        load: the model.
        lanes: cards in stage order, at least one; their shares sum to 1.
        way: how windows are made.
    """
    spans = [hit_share(lane.cache_bytes / max(load.experts_bytes * lane.share, 1.0)) for lane in lanes]
    hits = Span(
        sum(lane.share * span.least for lane, span in zip(lanes, spans, strict=True)),
        sum(lane.share * span.most for lane, span in zip(lanes, spans, strict=True)),
    )
    users, drafts = [], []
    for count in USERS:
        low, best = _best(load, lanes, way, count, [span.least for span in spans])
        high, _ = _best(load, lanes, way, count, [span.most for span in spans])
        users.append(Span(DECODE_SHARE[0] * low, DECODE_SHARE[1] * high))
        drafts.append(best)
    prompt = prompt_limit(load, lanes, way)
    return Speed(
        hits=hits,
        users=tuple(users),
        prompt=Span(PROMPT_SHARE[0] * prompt, PROMPT_SHARE[1] * prompt),
        drafts=tuple(drafts),
    )


def _best(load: Load, lanes: Sequence[Lane], way: Way, users: int, hits: Sequence[float]) -> tuple[float, int]:
    """(rate, drafts) of the draft length that brings most, the shorter of equals."""
    longest = way.draft_max if load.draft and (way.batch_mtp or users == 1) else 0
    rates = [limit(load, lanes, way, users=users, drafts=drafts, hits=hits) for drafts in range(longest + 1)]
    return max(rates), rates.index(max(rates))


def prompt_limit(load: Load, lanes: Sequence[Lane], way: Way) -> float:
    """Prompt tokens a second that products and the link allow: every expert that is not in VRAM comes once a chunk."""
    chunk = way.prompt_chunk
    seconds = 0.0
    for lane in lanes:
        away = max(0.0, load.experts_bytes * lane.share - lane.cache_bytes)
        link = lane.link_gbps if way.ram_gbps is None else min(lane.link_gbps, way.ram_gbps)
        compute = load.prompt_flop * lane.share * chunk / (lane.tflops * 1e12)
        seconds += max(compute, away / (link * 1e9))
    return chunk / max(seconds, LEAST_WINDOW_S)
