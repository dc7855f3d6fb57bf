"""The n-gram layer of a stage: its weights, where its table lies, and its launches."""

from __future__ import annotations

import torch

from appliance.model.qwen4exp.device.source import Source
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


class NgramLayer:
    """Hash, gather and gate before one layer of the trunk.

    Attributes:
        table, hashing, order, state, weights: what its launches read, for windows and for prompt chunks.
    """

    def __init__(self, source: Source, spec: ModelSpec, table: Table, state: NgramState) -> None:
        """Loads the weights.

        Args:
            source: of the weights.
            spec: of a model with an n-gram layer.
            table: on the device, or pinned on the host.
            state: of all slots.
        """
        assert spec.ngram is not None
        ngram: NgramSpec = spec.ngram
        block, shape = f"blk.{ngram.layer}", (spec.streams, spec.hidden)

        def numbers(values: tuple[int, ...]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64, device=source.device)

        self._spec, self.order, self.table, self.state = spec, ngram.order, table, state
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

    def gather(self, run: Run) -> None:
        """Picks the table's rows; needs nothing of the layers before."""
        gather_ngrams(
            table=self.table,
            hashing=self.hashing,
            rows=run.rows,
            state=self.state,
            buffers=self._bucket(run),
            exact=run.exact,
            pdl=run.pdl,
        )

    def add(self, run: Run, pending: Pending | None) -> None:
        """Adds what is pending and the embedding to the streams; nothing is pending afterwards."""
        add_ngrams(
            x=run.buffers.x,
            rows=run.rows,
            weights=self.weights,
            order=self.order,
            state=self.state,
            buffers=self._bucket(run),
            eps=self._spec.rms_eps,
            exact=run.exact,
            pdl=run.pdl,
            parts=None if pending is None else pending.parts,
            gate=None if pending is None else pending.gate,
        )

    def _bucket(self, run: Run) -> NgramBuffers:
        rows = run.rows.rows
        if rows not in self._buffers:
            self._buffers[rows] = new_buffers(
                rows, weights=self.weights, heads=len(self.hashing.head_rows), exact=run.exact
            )
        return self._buffers[rows]


def ngram_table(source: Source, spec: ModelSpec, *, home: str) -> Table:
    """The table in its home: "vram", or pinned memory of the host that kernels read."""
    info = source.info(NGRAM_TABLE)
    raw = source.table(NGRAM_TABLE, on_device=home == "vram")
    return Table(raw, info.type.name, info.shape[-1])
