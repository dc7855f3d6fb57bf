"""What a window leaves behind until it is committed, and the commit of a prefix of every span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from appliance.model.qwen4exp.rows import Rows
from appliance.model.qwen4exp.state import State
from kernels.compiled.arrays import Floats
from kernels.gdn.op import DeltaRows, commit_delta, commit_history


@dataclass(frozen=True, slots=True)
class Stash:
    """Of one window; a row depends on those before it in its span only.

    Attributes:
        delta: one per linear layer.
        index: raw indexer keys [rows, indexer dim], one per full layer.
        ple: inputs of the n-gram convolution [rows, streams * hidden]; at most one.
    """

    delta: list[DeltaRows] = field(default_factory=list)
    index: list[Floats] = field(default_factory=list)
    ple: list[Floats] = field(default_factory=list)


def commit(state: State, rows: Rows, stash: Stash, kept: Sequence[int]) -> None:
    """Keeps the first rows of every span, `kept` in the order of rows.spans; 0 leaves a slot as it was."""
    counts = np.array(kept, dtype=np.int64)
    for layer, delta in enumerate(stash.delta):
        commit_history(state.conv[layer].numpy(), delta.raw, rows.places.spans, counts)
        commit_delta(state.delta[layer].numpy(), delta, rows.places.spans, counts)
    for layer, keys in enumerate(stash.index):
        commit_history(state.index[layer].numpy(), keys, rows.places.spans, counts)
    for inputs in stash.ple:
        commit_history(state.ple.numpy(), inputs, rows.places.spans, counts)
    for span, count in zip(rows.spans, kept, strict=True):
        state.remember(span.slot, span.tokens[:count])
