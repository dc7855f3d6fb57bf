"""Owns a placement as bars: what fills each card and the RAM, the parts that are not the plan's own among them."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.placed import Placement, StagePlan
from appliance.rig.cards import Card

NAMES = {
    "card: weights": "dense",
    "card: experts": "cache",
    "card: states": "slots",
    "card: KV pages": "KV",
    "card: n-gram table": "n-gram table",
    "card: buffers": "buffers",
    "card: hand-off": "hand-off",
    "card: prompts": "prompts",
    "card: runtime": "runtime",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A named number of bytes."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One card's memory.

    Attributes:
        card: whose.
        layers: first and one past the last that it computes.
        parts: of the plan, the reserve, what others hold, and what is free; together all its memory.
    """

    card: Card
    layers: tuple[int, int]
    parts: tuple[Part, ...]

    def size(self, name: str) -> int:
        """Bytes of a part."""
        return sum(part.size_bytes for part in self.parts if part.name == name)


def bars_of(placement: Placement) -> tuple[Bar, ...]:
    """One for each card, in stage order."""
    return tuple(_bar(stage) for stage in placement.stages)


def ram_parts(placement: Placement) -> tuple[Part, ...]:
    """What is in RAM."""
    return tuple(Part(item.name, item.size_bytes) for item in placement.items)


def _bar(stage: StagePlan) -> Bar:
    card = stage.card
    free = card.free_bytes if card.free_bytes is not None else card.vram_bytes or 0
    total = card.vram_bytes or free
    parts = [Part(NAMES[item.name], item.size_bytes) for item in stage.items]
    parts += [
        Part("reserve", free - stage.budget_bytes),
        Part("others", max(0, total - free)),
        Part("free", max(0, stage.free_bytes)),
    ]
    return Bar(card=card, layers=(stage.first_layer, stage.past_layer), parts=tuple(parts))
