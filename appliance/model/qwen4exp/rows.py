"""Rows of a window as index tensors: computed once, shared by every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from kernels.attention import causal_mask


@dataclass(frozen=True, slots=True)
class SpanRows:
    """Rows of one slot: positions start, start + 1, ...; `first` is where they begin among the window's rows."""

    slot: int
    start: int
    tokens: tuple[int, ...]
    first: int = 0

    @property
    def count(self) -> int:
        """Rows."""
        return len(self.tokens)

    @property
    def stop(self) -> int:
        """Position after the last row."""
        return self.start + len(self.tokens)


@dataclass
class Context:
    """Neighbouring spans of a batch whose contexts are about equally long; they share one gather of pages.

    Attributes:
        first: of the batch's spans.
        stop: end of these spans.
        pages: int64 [spans, pages].
        positions: int64 [spans, length].
        tokens: of the gathered pages, per span.
        sparse: whether some row has more complete blocks than the indexer's budget.
    """

    first: int
    stop: int
    pages: torch.Tensor
    positions: torch.Tensor
    tokens: int
    sparse: bool

    @cached_property
    def mask(self) -> torch.Tensor:
        """Causal mask [spans, length, tokens]."""
        return causal_mask(self.positions, context=self.tokens)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Indexer blocks that the batch's rows complete.

    Attributes:
        rows: int64 [blocks, block_tokens]: rows of [spans * (history + length)].
        targets: int64 [blocks]: places among all pooled keys of a layer.
        cos: of each block's first token.
        sin: the same.
    """

    rows: torch.Tensor
    targets: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Spans handled together, padded to the longest by repeating their last row.

    Attributes:
        spans: in row order.
        length: rows of the longest.
        first: first of their rows in the window.
        stop: end of their rows.
        slots: int64 [spans].
        spread: int64 [spans * length], the row behind each padded place; None when all are equally long.
        gather: int64 [rows], the padded place of each row; None likewise.
        contexts: for attention.
        blocks: for the indexer; None when no block is completed.
    """

    spans: tuple[SpanRows, ...]
    length: int
    first: int
    stop: int
    slots: torch.Tensor
    spread: torch.Tensor | None
    gather: torch.Tensor | None
    contexts: tuple[Context, ...]
    blocks: Blocks | None

    def pad(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of the whole window [rows, ...] -> [spans, length, ...]."""
        own = rows[self.first : self.stop]
        if self.spread is not None:
            own = own.index_select(0, self.spread)
        return own.view(len(self.spans), self.length, *rows.shape[1:])

    def unpad(self, padded: torch.Tensor) -> torch.Tensor:
        """[spans, length, ...] -> this batch's rows."""
        flat = padded.reshape(len(self.spans) * self.length, *padded.shape[2:])
        return flat if self.gather is None else flat.index_select(0, self.gather)


@dataclass(frozen=True, slots=True)
class Rows:
    """A window ready to run.

    Attributes:
        spans: in row order.
        tokens: int64 [rows].
        cos: [rows, 1, rope dims].
        sin: the same, signed.
        kv_index: int64 [rows]: places among all tokens of the pages.
        batches: the spans in groups.
    """

    spans: tuple[SpanRows, ...]
    tokens: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    kv_index: torch.Tensor
    batches: tuple[Batch, ...]

    @property
    def count(self) -> int:
        """Rows of the window."""
        return self.tokens.shape[0]

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Rows of the batches, in order -> rows of the window."""
        return parts[0] if len(parts) == 1 else torch.cat(list(parts), 0)
