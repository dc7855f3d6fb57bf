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
    # ends[layer]: the best cost of the cards so far when they compute everything before `layer`, and their split.
    ends = {stop: (cost(0, range(stop)), ()) for stop in range(1, layers - stages + 2)}
    found: dict[int, tuple[StageCost, tuple[int, ...]]] = dict(ends)
    for stage in range(1, stages):
        last = stage + 1 == stages
        stops = [layers] if last else range(stage + 1, layers - (stages - stage - 1) + 1)
        found = {
            stop: min(
                (before.beside(cost(stage, range(first, stop))), (*split, first))
                for first, (before, split) in found.items()
                if first < stop
            )
            for stop in stops
        }
    return found[layers][1] if stages > 1 else ()
