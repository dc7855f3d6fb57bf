"""Where the rows of a prompt chunk belong: consecutive positions of one slot, which launches read on the device.

Of the host's numbers launches get only sizes and bounds, so that those of a chunk can be recorded and replayed for
another place of another conversation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

PLACE_WORDS: Final = 4


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one conversation, none of them a draft; row i has position `start + i`.

    Attributes:
        place: int32 [4], on the device: the slot whose state they continue, the first row's position, how many rows are
            somebody's, and the number of the last of those. What lies behind them is nobody's and changes nothing.
        tokens: int32 [rows], on the device.
        reach: no row lies at this position or behind it. Launches are as large as texts of this length need.
    """

    place: torch.Tensor
    tokens: torch.Tensor
    reach: int

    @classmethod
    def of(cls, slot: int, start: int, tokens: torch.Tensor, *, count: int | None = None) -> Chunk:
        """Makes one whose place the host knows, and waits for the device; `count` rows are somebody's, or all."""
        rows = tokens.shape[0] if count is None else count
        place = torch.tensor(place_words(slot, start, rows), dtype=torch.int32, device=tokens.device)
        return cls(place, tokens, start + tokens.shape[0])

    @property
    def rows(self) -> int:
        """Rows of the chunk, with those that are nobody's."""
        return self.tokens.shape[0]

    def piece(self, first: int, rows: int) -> Chunk:
        """Its rows from `first` on, at most `rows` of them."""
        if first == 0 and rows >= self.rows:
            return self
        tokens = self.tokens[first : first + rows]
        place = self.place.clone()
        place[1].add_(first)
        place[2].sub_(first).clamp_(0, tokens.shape[0])
        torch.sub(place[2], 1, out=place[3])
        return Chunk(place, tokens, self.reach)


def place_words(slot: int, start: int, count: int) -> tuple[int, int, int, int]:
    """The values of `Chunk.place`."""
    return slot, start, count, count - 1
