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
from kernels.block.op import Places, plan_rows
from kernels.compiled.arrays import Floats
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
        spec, placed = self.spec, []
        first = 0
        for span in spans:
            placed.append(SpanRows(span.slot, span.start, span.tokens, first))
            first += span.count
        table = np.array([(span.slot, span.first, span.count, span.start) for span in placed], dtype=np.int64)
        size = spec.block_tokens
        budget = spec.indexer_budget // size if trunk else 0
        cos, sin = self._kept
        places = plan_rows(table, self.state.pages, self.page_tokens, cos, sin, size, budget)
        if positions is not None or max(span.stop for span in placed) > cos.shape[0]:
            places = self._turned(places, positions)
        tokens = np.array([t for span in placed for t in span.tokens], dtype=np.int64)
        return Rows(spans=tuple(placed), tokens=tokens, places=places)

    def _turned(self, places: Places, positions: torch.Tensor | None) -> Places:
        """With tables of its own: of given positions, or of the text's beyond those that are kept."""
        table, blocks = places.spans, places.blocks
        index = np.concatenate([np.arange(start, start + count) for _, _, count, start in table])
        cos, sin = self._rope(torch.from_numpy(index) if positions is None else positions)
        within = blocks[:, 1] - table[blocks[:, 0], 3]
        if min(within, default=0) >= 0:
            rows = within + table[blocks[:, 0], 1]
            block_cos, block_sin = cos[rows], sin[rows]
        else:  # a block that began in an earlier window: text positions, see `build`
            block_cos, block_sin = self._rope(torch.from_numpy(blocks[:, 1]))
        return places._replace(cos=cos, sin=sin, block_cos=block_cos, block_sin=block_sin)

    def _rope(self, positions: torch.Tensor) -> tuple[Floats, Floats]:
        spec = self.spec
        tables = rope_tables(positions, dims=spec.rope_dims, theta=spec.rope_theta, sections=spec.rope_sections)
        return tables[0].squeeze(1).numpy(), tables[1].squeeze(1).numpy()

    @cached_property
    def _kept(self) -> tuple[Floats, Floats]:
        return self._rope(torch.arange(min(KEPT_POSITIONS, self.state.pages.shape[1] * self.page_tokens)))
