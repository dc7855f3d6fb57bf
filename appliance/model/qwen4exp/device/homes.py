"""Where every routed expert is: the tables that kernels read, and the same as numbers for the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LayerRouting:
    """One layer's row: table int64 [experts + 1] (the shared one last), counts int32 [experts]."""

    table: torch.Tensor
    counts: torch.Tensor


@dataclass(frozen=True, slots=True)
class Routing:
    """Tables and counts of all layers of a stage, so that one launch changes or reads any of them.

    Attributes:
        experts: of a layer.
        tables: int64 [layers, at least experts + 1].
        counts: int32 [layers, at least experts]: rows routed to each since start; they wrap around.
    """

    experts: int
    tables: torch.Tensor
    counts: torch.Tensor

    @classmethod
    def empty(cls, *, layers: int, experts: int, device: torch.device) -> Routing:
        """For so many layers; a layer's row is 16-byte aligned, as kernels were compiled for."""
        return cls(
            experts,
            torch.zeros((layers, -(-(experts + 1) // 2) * 2), dtype=torch.int64, device=device),
            torch.zeros((layers, -(-experts // 4) * 4), dtype=torch.int32, device=device),
        )

    def layer(self, number: int) -> LayerRouting:
        """The row of a layer of this stage."""
        return LayerRouting(self.tables[number, : self.experts + 1], self.counts[number, : self.experts])

    def change(self, entries: Sequence[tuple[int, int, int]], *, pinned: torch.Tensor) -> None:
        """Writes (layer, expert, entry) after everything that the current stream was given; waits for nothing.

        Args:
            entries: at most the rows of `pinned`.
            pinned: int64 [2, most entries] of the host, not written again before this change has happened.
        """
        width, count = self.tables.shape[1], len(entries)
        held: NDArray[np.int64] = pinned.numpy()
        for at, (layer, expert, entry) in enumerate(entries):
            held[:, at] = layer * width + expert, entry
        there = pinned[:, :count].to(self.tables.device, non_blocking=True)
        self.tables.view(-1).index_copy_(0, there[0], there[1])


class Homes:
    """Experts of one layer: slots of the card's pool and places of the host's, each held by at most one.

    Attributes:
        slot: int32 [experts], its slot, or -1 where it is not on the card.
        place: int32 [experts], its place in RAM, or -1.
        spare: table entries of those that are on the card in neither, on their way from a place to a slot.
    """

    def __init__(self, experts: int, resident: Sequence[int]) -> None:
        """`resident` on the card, the others in RAM, both in the order of their numbers."""
        self.slot = np.full(experts, -1, np.int32)
        self.place = np.full(experts, -1, np.int32)
        here = sorted(resident)
        there = sorted(set(range(experts)) - set(here))
        self.spare: dict[int, int] = {}
        self.slot[here] = np.arange(len(here))
        self.place[there] = np.arange(len(there))

    @property
    def resident(self) -> NDArray[np.bool_]:
        """bool [experts]: in a slot of the card."""
        found: NDArray[np.bool_] = self.slot >= 0
        return found
