"""Where each row of a decode window belongs: slots, positions and spans, in device memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

RING_POSITIONS = 16
"""Positions that every state ring holds; position p lies at p % RING_POSITIONS."""

MOST_ROWS = 64
"""Rows of the largest bucket; kernels that look at all rows at once hold so many, whatever the bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRows:
    """Row metadata of one bucket; every tensor is int32, persistent, and filled before the window runs.

    A window has up to `rows` rows, in spans of consecutive positions of one slot; there are as many span places as
    rows. Rows from `rows_used` on are padding: they belong to the dummy slot (the last of every state tensor), at
    position 0, with token 0.

    Attributes:
        tokens: [rows].
        slot: [rows].
        position: [rows].
        span: [rows], index of the row's span.
        rows_used: [1].
        span_slot: [rows].
        span_first: [rows], first row of the span.
        span_count: [rows], rows of the span; 0 for places that are not used.
        span_start: [rows], position of the first row.
        span_certain: [rows], rows that are no drafts; they come first.
        spans_used: [1].
    """

    tokens: torch.Tensor
    slot: torch.Tensor
    position: torch.Tensor
    span: torch.Tensor
    rows_used: torch.Tensor
    span_slot: torch.Tensor
    span_first: torch.Tensor
    span_count: torch.Tensor
    span_start: torch.Tensor
    span_certain: torch.Tensor
    spans_used: torch.Tensor

    @property
    def rows(self) -> int:
        """Row capacity of the bucket."""
        return self.tokens.shape[0]
