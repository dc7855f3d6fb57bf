"""Rows of a window as index tensors: computed once, shared by every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.state import State
from kernels.attention import causal_mask
from kernels.rope import rope_tables

# Spans up to this many rows are padded to the longest of them and handled as one batch.
SHORT_ROWS = 8


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


@dataclass(frozen=True)
class RowBuilder:
    """Turns spans into Rows for one model and its state."""

    spec: ModelSpec
    state: State
    page_tokens: int
    device: torch.device
    _tables: dict[str, torch.Tensor] = field(default_factory=dict)

    def build(
        self, spans: Sequence[SpanRows], *, trunk: bool, positions: torch.Tensor | None = None
    ) -> Rows:
        """Plans a window.

        Args:
            spans: at least one row each; their order is free, `first` is ignored.
            trunk: with indexer blocks and sparse contexts; the draft layer has neither.
            positions: int64 [3, rows] of time, height and width in the order of the spans, instead of the text's.
                Every span then starts at a multiple of the indexer's block, in a slot of its own.

        Returns:
            The plan; spans may be in another order.
        """
        groups = self._groups(spans)
        placed: list[SpanRows] = []
        first = 0
        for span in (span for group in groups for span in group):
            placed.append(SpanRows(span.slot, span.start, span.tokens, first))
            first += span.count
        starts = np.array([span.start - span.first for span in placed], dtype=np.int64)
        counts = np.array([span.count for span in placed], dtype=np.int64)
        index = np.arange(first, dtype=np.int64) + np.repeat(starts, counts)
        slots = np.repeat(np.array([span.slot for span in placed], dtype=np.int64), counts)
        pages = self.state.pages[slots, index // self.page_tokens]
        cos, sin = self._rope(self._tensor(index) if positions is None else positions)
        batches, done = [], 0
        for group in groups:
            own = tuple(placed[done : done + len(group)])
            done += len(group)
            batches.append(self._batch(own, index, cos, sin, trunk=trunk))
        return Rows(
            spans=tuple(placed),
            tokens=self._tensor(np.array([t for span in placed for t in span.tokens], dtype=np.int64)),
            cos=cos,
            sin=sin,
            kv_index=self._tensor(pages * self.page_tokens + index % self.page_tokens),
            batches=tuple(batches),
        )

    def _tensor(self, values: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)

    def _rope(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        spec = self.spec
        return rope_tables(positions, dims=spec.rope_dims, theta=spec.rope_theta, sections=spec.rope_sections)

    def _pages_of(self, span: SpanRows) -> int:
        return -(-span.stop // self.page_tokens)

    def _groups(self, spans: Sequence[SpanRows]) -> list[list[SpanRows]]:
        short = [span for span in spans if span.count <= SHORT_ROWS]
        groups = [[span] for span in spans if span.count > SHORT_ROWS]
        if not short:
            return groups
        needs = [self._pages_of(span) for span in short]
        if len(short) * max(needs) > 2 * sum(needs) + 8:
            short.sort(key=self._pages_of)
        return [short, *groups]

    def _batch(
        self, spans: tuple[SpanRows, ...], index: NDArray[np.int64], cos: torch.Tensor, sin: torch.Tensor, *, trunk: bool
    ) -> Batch:
        first, length = spans[0].first, max(span.count for span in spans)
        stop = spans[-1].first + spans[-1].count
        even = all(span.count == length for span in spans)
        counts = np.array([span.count for span in spans], dtype=np.int64)
        offsets = np.array([span.first - first for span in spans], dtype=np.int64)
        column = np.arange(length, dtype=np.int64)
        spread = offsets[:, None] + np.minimum(column, counts[:, None] - 1)
        gather = None
        if not even:
            gather = self._tensor(np.flatnonzero(column < counts[:, None]))
        return Batch(
            spans=spans,
            length=length,
            first=first,
            stop=stop,
            slots=self._tensor(np.array([span.slot for span in spans], dtype=np.int64)),
            spread=None if even else self._tensor(spread.reshape(-1)),
            gather=gather,
            contexts=self._contexts(spans, index[first + spread], trunk=trunk),
            blocks=self._blocks(spans, length, cos, sin) if trunk else None,
        )

    def _contexts(
        self, spans: tuple[SpanRows, ...], positions: NDArray[np.int64], *, trunk: bool
    ) -> tuple[Context, ...]:
        needs = [self._pages_of(span) for span in spans]
        cuts = [0]
        if len(spans) * max(needs) > 2 * sum(needs) + 8:
            sizes = [need.bit_length() for need in needs]
            cuts += [i for i in range(1, len(spans)) if sizes[i] != sizes[i - 1]]
        cuts.append(len(spans))
        budget = self.spec.indexer_budget // self.spec.block_tokens
        found = []
        for first, stop in zip(cuts, cuts[1:], strict=False):
            count = max(needs[first:stop])
            slots = [span.slot for span in spans[first:stop]]
            complete = max(span.stop for span in spans[first:stop]) // self.spec.block_tokens
            found.append(
                Context(
                    first=first,
                    stop=stop,
                    pages=self._tensor(self.state.pages[slots, :count]),
                    positions=self._tensor(positions[first:stop]),
                    tokens=count * self.page_tokens,
                    sparse=trunk and complete > budget,
                )
            )
        return tuple(found)

    def _blocks(
        self, spans: tuple[SpanRows, ...], length: int, cos: torch.Tensor, sin: torch.Tensor
    ) -> Blocks | None:
        size = self.spec.block_tokens
        per_page = self.page_tokens // size
        rows, targets, heads = [], [], []
        for place, span in enumerate(spans):
            base = place * (size - 1 + length) + size - 1 - span.start
            for block in range(span.start // size, span.stop // size):
                rows.append(base + block * size)
                page = int(self.state.pages[span.slot, block * size // self.page_tokens])
                targets.append(page * per_page + block % per_page)
                heads.append((block * size, span))
        if not rows:
            return None
        return self._block_tensors(rows, targets, heads, cos, sin)

    def _block_tensors(
        self,
        rows: list[int],
        targets: list[int],
        heads: list[tuple[int, SpanRows]],
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> Blocks:
        within = [position - span.start + span.first for position, span in heads]
        if all(position >= span.start for position, span in heads):
            index = self._tensor(np.array(within, dtype=np.int64))
            tables = cos.index_select(0, index), sin.index_select(0, index)
        else:  # A block that began in an earlier window: text positions, see `build`.
            tables = self._rope(self._tensor(np.array([position for position, _ in heads], dtype=np.int64)))
        start = np.array(rows, dtype=np.int64)[:, None] + np.arange(self.spec.block_tokens, dtype=np.int64)
        targets_tensor = self._tensor(np.array(targets, dtype=np.int64))
        return Blocks(self._tensor(start), targets_tensor, tables[0], tables[1])
