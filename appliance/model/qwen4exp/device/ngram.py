"""The n-gram layer of a stage: its weights, where its table lies, and its launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from appliance.model.qwen4exp.device.ngram_storage import StoredRows
from appliance.model.qwen4exp.device.source import Source
from appliance.model.qwen4exp.device.tables import MOST_ROWS
from appliance.model.qwen4exp.device.trunk import Pending, Run
from appliance.model.qwen4exp.footprint import NGRAM_TABLE
from appliance.model.qwen4exp.spec import ModelSpec, NgramSpec
from kernels.embedding import Table
from kernels.ngram.decode import (
    NgramBuffers,
    NgramHash,
    NgramState,
    NgramWeights,
    add_ngrams,
    gather_ngrams,
    new_buffers,
)
from kernels.rows import SpanPlan

STORAGE: Final = ("mmap", "direct")


class NgramLayer:
    """Hash, gather and gate before one layer of the trunk.

    Attributes:
        table, hashing, order, state, weights: what its launches read, for windows and for prompt chunks.
        stored: the table where it stays on storage; `table` then has the rows of one window.
    """

    def __init__(
        self, source: Source, spec: ModelSpec, table: Table, state: NgramState, *, stored: StoredRows | None = None
    ) -> None:
        """Loads the weights.

        Args:
            source: of the weights.
            spec: of a model with an n-gram layer.
            table: on the device, or pinned on the host.
            state: of all slots.
            stored: see the class.
        """
        assert spec.ngram is not None
        ngram: NgramSpec = spec.ngram
        block, shape = f"blk.{ngram.layer}", (spec.streams, spec.hidden)

        def numbers(values: tuple[int, ...]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64, device=source.device)

        self._spec, self.order, self.table, self.state = spec, ngram.order, table, state
        self.stored = stored
        self._held: dict[int, torch.Tensor] = {}
        self.hashing = NgramHash(
            multipliers=numbers(ngram.multipliers),
            head_rows=numbers(ngram.head_rows),
            head_offsets=numbers(ngram.head_offsets),
            reset=ngram.reset_token_id,
        )
        self.weights = NgramWeights(
            key=source.planes(f"{block}.ple_key.weight"),
            value=source.planes(f"{block}.ple_value.weight"),
            norm_key=source.floats(f"{block}.ple_norm_key.weight").reshape(shape),
            norm_query=source.floats(f"{block}.ple_norm_query.weight").reshape(shape),
            norm_conv=source.floats(f"{block}.ple_norm_conv.weight").reshape(shape),
            conv=source.floats(f"{block}.ple_conv1d.weight").reshape(spec.wide, -1).t().contiguous(),
        )
        self._buffers: dict[int, NgramBuffers] = {}

    def send(self, spans: Sequence[SpanPlan], *, lane: int) -> None:
        """Before a window is launched: brings its rows of a table on storage; no other of its lane is on its way."""
        if self.stored is None or not spans:
            return
        assert all(span.tokens for span in spans), "rows are fetched by tokens that the host knows"
        wanted = np.concatenate([self.stored.numbers(span.slot, span.start, span.tokens) for span in spans])
        raw = self.table.raw
        if lane not in self._held:
            self._held[lane] = torch.empty(raw.shape, dtype=torch.uint8, pin_memory=raw.is_cuda)
        held = self._held[lane][: wanted.size]
        self.stored.fetch(wanted, held)
        raw[: wanted.size].copy_(held, non_blocking=True)

    def chunk_table(self, slot: int, start: int, tokens: Sequence[int]) -> Table:
        """The table for a prompt chunk; from storage, its rows one after the other."""
        if self.stored is None:
            return self.table
        wanted = self.stored.numbers(slot, start, tokens)
        raw = self.table.raw
        # Fresh pinned memory, which torch does not hand out again before the copy from it is done.
        held = torch.empty((wanted.size, raw.shape[1]), dtype=torch.uint8, pin_memory=raw.is_cuda)
        self.stored.fetch(wanted, held)
        return Table(held.to(raw.device, non_blocking=True), self.table.type_name, self.table.columns)

    def gather(self, run: Run) -> None:
        """Picks the table's rows; needs nothing of the layers before."""
        gather_ngrams(
            table=self.table,
            hashing=self.hashing,
            rows=run.rows,
            state=self.state,
            buffers=self.bucket(run),
            exact=run.exact,
            pdl=run.pdl,
            staged=self.stored is not None,
        )

    def add(self, run: Run, pending: Pending | None) -> None:
        """Adds what is pending and the embedding to the streams; nothing is pending afterwards."""
        add_ngrams(
            x=run.buffers.x,
            rows=run.rows,
            weights=self.weights,
            order=self.order,
            state=self.state,
            buffers=self.bucket(run),
            eps=self._spec.rms_eps,
            exact=run.exact,
            pdl=run.pdl,
            parts=None if pending is None else pending.parts,
            gate=None if pending is None else pending.gate,
        )

    def bucket(self, run: Run) -> NgramBuffers:
        """Buffers of a bucket; the same at every call."""
        rows = run.rows.rows
        if rows not in self._buffers:
            self._buffers[rows] = new_buffers(
                rows, weights=self.weights, heads=len(self.hashing.head_rows), exact=run.exact
            )
        return self._buffers[rows]


def ngram_table(source: Source, spec: ModelSpec, *, home: str) -> Table:
    """The table in its home: "vram", or "ram" pinned on the host; on storage, the device's room for a window's rows."""
    info = source.info(NGRAM_TABLE)
    if home in STORAGE:
        assert spec.ngram is not None
        shape = (MOST_ROWS * spec.ngram.heads, info.row_bytes)
        raw = torch.zeros(shape, dtype=torch.uint8, device=source.device)
    else:
        raw = source.table(NGRAM_TABLE, on_device=home == "vram")
    return Table(raw, info.type.name, info.shape[-1])


def stored_rows(source: Source, spec: ModelSpec, *, home: str, slots: int) -> StoredRows | None:
    """The table on storage, where that is its home."""
    if home not in STORAGE or spec.ngram is None:
        return None
    return StoredRows(source.info(NGRAM_TABLE), spec.ngram, home=home, slots=slots)
