"""Where the rows of a prompt chunk belong: consecutive positions of one slot, known to the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one conversation, none of them a draft; row i has position `start + i`.

    Attributes:
        slot: whose state they continue.
        start: position of the first row.
        tokens: int32 [rows], on the device.
    """

    slot: int
    start: int
    tokens: torch.Tensor

    @property
    def rows(self) -> int:
        """Rows of the chunk."""
        return self.tokens.shape[0]

    @property
    def stop(self) -> int:
        """Position after the last row."""
        return self.start + self.rows
