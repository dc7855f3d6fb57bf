"""The commit of a prefix of every span."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from appliance.model.qwen4exp.rows import Rows
from appliance.model.qwen4exp.state import State
from kernels.trunk.op import Undecided, commit_rows


def commit(state: State, rows: Rows, undecided: Undecided, kept: Sequence[int]) -> None:
    """Keeps the first rows of every span, `kept` in the order of rows.spans; 0 leaves a slot as it was."""
    commit_rows(state.arrays, undecided, rows.places.spans, np.array(kept, dtype=np.int64))
    for span, count in zip(rows.spans, kept, strict=True):
        state.remember(span.slot, span.tokens[:count])
