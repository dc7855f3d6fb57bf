"""The n-gram embedding of a window: hash, gather, gate, convolve, add to the streams."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from appliance.model.qwen4exp.layers import PleWeights
from appliance.model.qwen4exp.rows import Rows
from appliance.model.qwen4exp.spec import NgramSpec
from appliance.model.qwen4exp.stash import Stash
from appliance.model.qwen4exp.state import State
from appliance.model.qwen4exp.table import NgramTable
from kernels.gdn import causal_conv
from kernels.ngram import context_windows, gate_values, hash_rows


class NgramEmbedding:
    """Constants of the hash and the table."""

    def __init__(self, spec: NgramSpec, table: NgramTable, *, device: torch.device, eps: float) -> None:
        self._spec = spec
        self._table = table
        self._eps = eps
        self._multipliers = torch.tensor(spec.multipliers, dtype=torch.int64, device=device)
        self._head_rows = torch.tensor(spec.head_rows, dtype=torch.int64, device=device)
        self._head_offsets = torch.tensor(spec.head_offsets, dtype=torch.int64, device=device)

    def numbers(self, rows: Rows, state: State) -> torch.Tensor:
        """Table rows of every row of the window, int64 [rows, heads]."""
        parts = []
        for batch in rows.batches:
            history = torch.tensor([state.contexts[span.slot] for span in batch.spans], device=rows.tokens.device)
            windows = context_windows(batch.pad(rows.tokens), history, reset=self._spec.reset_token_id)
            parts.append(batch.unpad(windows))
        return hash_rows(
            rows.join(parts),
            multipliers=self._multipliers,
            head_rows=self._head_rows,
            head_offsets=self._head_offsets,
        )

    def values(self, numbers: torch.Tensor) -> torch.Tensor:
        """Gathers table rows: [rows, heads] -> float32 [rows, heads * row width]."""
        return self._table.gather(numbers.view(-1)).view(numbers.shape[0], self._spec.width)

    def add(
        self, x: torch.Tensor, found: torch.Tensor, weights: PleWeights, rows: Rows, stashes: Sequence[Stash]
    ) -> torch.Tensor:
        """Adds to the streams x [rows, streams, hidden] in place; returns what was added."""
        gated, normed = gate_values(x, found, weights.gate, eps=self._eps)
        flat, mixed = normed.flatten(1), []
        for batch, stash in zip(rows.batches, stashes, strict=True):
            stash.ple[:, -batch.length :] = batch.pad(flat)
            mixed.append(batch.unpad(causal_conv(stash.ple, weights.conv, dilation=self._spec.order)))
        gated.add_(rows.join(mixed).view_as(gated))
        x.add_(gated)
        return gated
