"""Owns the automatic split: which card computes which layers, so that the slowest of them is as quick as can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, order=True)
class StageCost:
    """Some layers on some card; less is better, what does not fit being worst.

    Attributes:
        short_bytes: what the card lacks for them.
        seconds: of an expected window.
        total_s: of all cards, where this stands for several.
    """

    short_bytes: int
    seconds: float
    total_s: float

    def less_than(self, other: StageCost) -> bool:
        """Whether this is the quicker of two that work at the same time."""
        return (self.short_bytes, self.seconds) < (other.short_bytes, other.seconds)

    def beside(self, other: StageCost) -> StageCost:
        """Both: the worse of each, and the time that a lone user's window takes through all."""
        return StageCost(
            max(self.short_bytes, other.short_bytes), max(self.seconds, other.seconds), self.total_s + other.total_s
        )


CostOf: TypeAlias = Callable[[int, range], StageCost]


def best_split(cost: CostOf, *, stages: int, layers: int) -> tuple[int, ...]:
    """First layer of each later card; every card gets a layer.

    Args:
        cost: of a card (by its number) with a range of layers.
        stages: how many cards, no more than layers.
        layers: of the trunk.
    """
    # The best cost of the cards so far when they compute everything before a layer, and their split.
    found: dict[int, tuple[StageCost, tuple[int, ...]]] = {
        stop: (cost(0, range(stop)), ()) for stop in range(1, layers - stages + 2)
    }
    for stage in range(1, stages):
        stops = [layers] if stage + 1 == stages else range(stage + 1, layers - (stages - stage - 1) + 1)
        found = {stop: _best_boundary(cost, stage, stop, found) for stop in stops}
    return found[layers][1] if stages > 1 else ()


def _best_boundary(
    cost: CostOf, stage: int, stop: int, before: dict[int, tuple[StageCost, tuple[int, ...]]]
) -> tuple[StageCost, tuple[int, ...]]:
    """Where a card begins that ends at `stop`; more layers never cost it less, so a card alone may end the search."""
    best: tuple[StageCost, tuple[int, ...]] | None = None
    for first in sorted((layer for layer in before if layer < stop), reverse=True):
        own = cost(stage, range(first, stop))
        if best is not None and best[0].less_than(own):
            break
        found = (before[first][0].beside(own), (*before[first][1], first))
        best = found if best is None else min(best, found)
    assert best is not None
    return best
