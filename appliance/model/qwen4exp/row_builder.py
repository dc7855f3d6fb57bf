"""Plans a window: which spans go together, and where each row reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.model.qwen4exp.rows import Batch, Blocks, Context, Rows, SpanRows
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.state import State
from kernels.rope import rope_tables

# Spans up to this many rows are padded to the longest of them and handled as one batch.
SHORT_ROWS = 8


# Rotary tables of the first positions are kept; beyond them a window computes its own.
KEPT_POSITIONS = 1 << 15


@dataclass(frozen=True)
class RowBuilder:
    """Turns spans into Rows for one model and its state."""

    spec: ModelSpec
    state: State
    page_tokens: int
    device: torch.device

    def build(self, spans: Sequence[SpanRows], *, trunk: bool, positions: torch.Tensor | None = None) -> Rows:
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
        cos, sin = self._text_rope(index) if positions is None else self._rope(positions)
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

    def _text_rope(self, index: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self._kept
        where = self._tensor(index)
        if int(index.max()) >= cos.shape[0]:
            return self._rope(where)
        return cos.index_select(0, where), sin.index_select(0, where)

    @cached_property
    def _kept(self) -> tuple[torch.Tensor, torch.Tensor]:
        longest = min(KEPT_POSITIONS, self.state.pages.shape[1] * self.page_tokens)
        return self._rope(torch.arange(longest, device=self.device))

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
        self,
        spans: tuple[SpanRows, ...],
        index: NDArray[np.int64],
        cos: torch.Tensor,
        sin: torch.Tensor,
        *,
        trunk: bool,
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
        for first, stop in pairwise(cuts):
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

    def _blocks(self, spans: tuple[SpanRows, ...], length: int, cos: torch.Tensor, sin: torch.Tensor) -> Blocks | None:
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
            tables = self._text_rope(np.array([position for position, _ in heads], dtype=np.int64))
        start = np.array(rows, dtype=np.int64)[:, None] + np.arange(self.spec.block_tokens, dtype=np.int64)
        targets_tensor = self._tensor(np.array(targets, dtype=np.int64))
        return Blocks(self._tensor(start), targets_tensor, tables[0], tables[1])
