"""Owns the cost of one window on one card: bytes against bandwidths; pure numbers in, seconds out.

Source: published measurements of this model on comparable servers. One window of b users with k drafts moves
GPU = dense + hits + b * state + drafter and HOST = misses; without overlap its time is GPU / VRAM + HOST / link.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ACCEPTANCE: Final = 0.7
# About 2,000 launches a window, at 1 microsecond each, are there whatever the bytes are.
LEAST_WINDOW_S: Final = 0.002
DRAFT_USER_BYTES: Final = 20_000_000
# A hand-off is a launch or two, and the streams of its rows.
HANDOFF_S: Final = 0.00005
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
        draft_step_bytes: read by each step of a chain of drafts: the draft layer, and the head.
        row_bytes: of one row that is handed from a card to the next.
    """

    layers: int
    experts: int
    experts_used: int
    expert_bytes: float
    dense_bytes: float
    state_bytes: float
    prompt_flop: float
    draft: bool
    draft_step_bytes: float
    row_bytes: float

    @property
    def experts_bytes(self) -> float:
        """All routed experts."""
        return self.layers * self.experts * self.expert_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One card and its share of the layers.

    Attributes:
        share: of the model's layers, and so of its routed experts, 0 to 1.
        dense_share, state_share: of its dense bytes and of its states, which kinds of layers have unequally.
        vram_gbps: its memory.
        link_gbps: how quickly it reads pinned RAM.
        tflops: dense FP16 products.
        cache_bytes: experts that it holds.
        direct: whether it writes to the next card itself, which was proved; else by way of RAM.
    """

    share: float
    dense_share: float
    state_share: float
    vram_gbps: float
    link_gbps: float
    tflops: float
    cache_bytes: float
    direct: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How windows are made: longest draft, drafts with several users, pipelined groups, prompt chunk, RAM bandwidth
    (None: not known, so it does not bind)."""

    draft_max: int
    batch_mtp: bool
    groups: int
    prompt_chunk: int
    ram_gbps: float | None = None


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


def stage_s(load: Load, lane: Lane, way: Way, *, users: int, drafts: int, hits: float, last: bool) -> float:
    """Seconds of one window on one card's layers, without overlap of VRAM and link.

    Args:
        load: the model.
        lane: the card.
        way: how windows are made.
        users: conversations in the window.
        drafts: of each.
        hits: share of routed experts found in VRAM.
        last: whether the card verifies and drafts too.
    """
    routed = distinct_experts(load, users=users, drafts=drafts) * load.layers * load.expert_bytes * lane.share
    dense = load.dense_bytes * lane.dense_share + users * load.state_bytes * lane.state_share
    seconds = (dense + hits * routed) / (lane.vram_gbps * 1e9)
    seconds += 0.0 if hits >= 1 else (1 - hits) * routed / (link_gbps(lane, way) * 1e9)
    chain = drafts * (load.draft_step_bytes + DRAFT_USER_BYTES * users) / (lane.vram_gbps * 1e9) if last else 0.0
    return max(seconds, LEAST_WINDOW_S * lane.share) + chain


def handoffs_s(load: Load, lanes: Sequence[Lane], *, rows: int) -> tuple[float, ...]:
    """Seconds from each card to the next, once or twice over the slower link; from the last few numbers go back."""
    found = []
    for one, other in itertools.pairwise(lanes):
        seconds = rows * load.row_bytes / (min(one.link_gbps, other.link_gbps) * 1e9)
        found.append(HANDOFF_S + seconds * (1 if one.direct else 2))
    return (*found, HANDOFF_S)


def link_gbps(lane: Lane, way: Way) -> float:
    """How quickly a card reads pinned RAM: as its link allows, or RAM itself."""
    return lane.link_gbps if way.ram_gbps is None else min(lane.link_gbps, way.ram_gbps)
