"""What a window leaves behind until it is committed, and the commit of a prefix of every span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from appliance.model.qwen4exp.rows import Batch, Rows
from appliance.model.qwen4exp.state import State
from kernels.gdn import DeltaRows, commit_state


@dataclass
class Stash:
    """Of one batch. Histories come first, then the window's rows; a row depends on those before it only.

    Attributes:
        conv: [linear layers, spans, taps - 1 + length, channels].
        index: [full layers, spans, block - 1 + length, indexer dim].
        ple: [spans, history + length, streams * hidden].
        delta: one per linear layer.
    """

    conv: torch.Tensor
    index: torch.Tensor
    ple: torch.Tensor
    delta: list[DeltaRows] = field(default_factory=list)


def begin(state: State, batch: Batch) -> Stash:
    """Buffers with the committed histories in place."""
    parts = []
    for history in (state.conv, state.index, state.ple.unsqueeze(0)):
        layers, _, before, width = history.shape
        buffer = history.new_empty(layers, len(batch.spans), before + batch.length, width)
        buffer[:, :, :before] = history.index_select(1, batch.slots)
        parts.append(buffer)
    return Stash(parts[0], parts[1], parts[2][0])


def commit(state: State, rows: Rows, stashes: Sequence[Stash], kept: Sequence[int]) -> None:
    """Keeps the first rows of every span, `kept` in the order of rows.spans; 0 leaves a slot as it was."""
    place = 0
    for batch, stash in zip(rows.batches, stashes, strict=True):
        own = kept[place : place + len(batch.spans)]
        place += len(batch.spans)
        counts = torch.tensor(own, dtype=torch.int64, device=batch.slots.device)
        _keep_histories(state, batch, stash, counts)
        _keep_delta(state, batch, stash, counts)
        for span, count in zip(batch.spans, own, strict=True):
            state.remember(span.slot, span.tokens[:count])


def _keep_histories(state: State, batch: Batch, stash: Stash, kept: torch.Tensor) -> None:
    place = torch.arange(len(batch.spans), device=kept.device).unsqueeze(1)
    for history, buffer in (
        (state.conv, stash.conv),
        (state.index, stash.index),
        (state.ple.unsqueeze(0), stash.ple.unsqueeze(0)),
    ):
        index = kept.unsqueeze(1) + torch.arange(history.shape[2], device=kept.device)
        history.index_copy_(1, batch.slots, buffer[:, place, index])


def _keep_delta(state: State, batch: Batch, stash: Stash, kept: torch.Tensor) -> None:
    layers = len(stash.delta)
    if layers == 0:
        return
    rows = DeltaRows(
        torch.cat([part.key for part in stash.delta]),
        torch.cat([part.update for part in stash.delta]),
        torch.cat([part.decay for part in stash.delta]),
    )
    before = state.delta.index_select(1, batch.slots)
    after = commit_state(before.flatten(0, 1), rows, kept.repeat(layers))
    state.delta.index_copy_(1, batch.slots, after.view_as(before))
