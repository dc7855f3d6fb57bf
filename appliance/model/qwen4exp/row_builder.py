"""Plans a window: where each row reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from appliance.model.qwen4exp.rows import Rows, SpanRows
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.state import State
from kernels.block.op import Places
from kernels.compiled.arrays import Floats, Integers
from kernels.rope import rope_tables

# Rotary tables of the first positions are kept; beyond them a window computes its own.
KEPT_POSITIONS = 1 << 15


@dataclass(frozen=True)
class RowBuilder:
    """Turns spans into Rows for one model and its state."""

    spec: ModelSpec
    state: State
    page_tokens: int

    def build(self, spans: Sequence[SpanRows], *, trunk: bool, positions: torch.Tensor | None = None) -> Rows:
        """Plans a window.

        Args:
            spans: at least one row each, in the order of the rows; `first` is ignored.
            trunk: with indexer blocks and sparse contexts; the draft layer has neither.
            positions: int64 [3, rows] of time, height and width in the order of the spans, instead of the text's.
                Every span then starts at a multiple of the indexer's block, in a slot of its own.

        Returns:
            The plan.
        """
        placed: list[SpanRows] = []
        first = 0
        for span in spans:
            placed.append(SpanRows(span.slot, span.start, span.tokens, first))
            first += span.count
        table = np.array([(span.slot, span.first, span.count, span.start) for span in placed], dtype=np.int64)
        index = np.arange(first, dtype=np.int64) + np.repeat(table[:, 3] - table[:, 1], table[:, 2])
        slots = np.repeat(table[:, 0], table[:, 2])
        longest = max(span.stop for span in placed)
        page = self.state.pages[slots, index // self.page_tokens]
        cos, sin = self._text_rope(index) if positions is None else self._rope(positions)
        blocks, block_cos, block_sin = self._blocks(placed if trunk else (), cos, sin)
        size = self.spec.block_tokens
        return Rows(
            spans=tuple(placed),
            tokens=np.array([t for span in placed for t in span.tokens], dtype=np.int64),
            places=Places(
                spans=table,
                cos=cos,
                sin=sin,
                tokens=page * self.page_tokens + index % self.page_tokens,
                pages=np.ascontiguousarray(self.state.pages[table[:, 0], : -(-longest // self.page_tokens)]),
                blocks=blocks,
                block_cos=block_cos,
                block_sin=block_sin,
                sparse=trunk and longest // size > self.spec.indexer_budget // size,
            ),
        )

    def _rope(self, positions: torch.Tensor) -> tuple[Floats, Floats]:
        spec = self.spec
        tables = rope_tables(positions, dims=spec.rope_dims, theta=spec.rope_theta, sections=spec.rope_sections)
        return tables[0].squeeze(1).numpy(), tables[1].squeeze(1).numpy()

    def _text_rope(self, index: Integers) -> tuple[Floats, Floats]:
        cos, sin = self._kept
        if int(index.max()) >= cos.shape[0]:
            return self._rope(torch.from_numpy(index))
        return cos[index], sin[index]

    @cached_property
    def _kept(self) -> tuple[Floats, Floats]:
        return self._rope(torch.arange(min(KEPT_POSITIONS, self.state.pages.shape[1] * self.page_tokens)))

    def _blocks(self, spans: Sequence[SpanRows], cos: Floats, sin: Floats) -> tuple[Integers, Floats, Floats]:
        """Indexer blocks that the rows complete, see `Places`."""
        size = self.spec.block_tokens
        per_page = self.page_tokens // size
        found, within = [], []
        for number, span in enumerate(spans):
            for block in range(span.start // size, span.stop // size):
                page = int(self.state.pages[span.slot, block * size // self.page_tokens])
                found.append((number, block * size, page * per_page + block % per_page))
                within.append(block * size - span.start + span.first if block * size >= span.start else -1)
        blocks = np.array(found, dtype=np.int64).reshape(-1, 3)
        if min(within, default=0) >= 0:
            index = np.array(within, dtype=np.int64)
            return blocks, cos[index], sin[index]
        # A block that began in an earlier window: text positions, see `build`.
        return blocks, *self._text_rope(blocks[:, 1])
