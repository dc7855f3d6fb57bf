"""Shapes of models that a bench makes up; torch-free."""

from __future__ import annotations

import dataclasses
from typing import Final

from appliance.model.qwen4exp.hyperparameters import Hyperparameters
from appliance.models.outline import NGRAM, REAL

# Rows of each head of a table that is small enough to be made up.
HEAD_ROWS: Final = 65521

SHAPES: Final[dict[str, Hyperparameters]] = {
    "real": dataclasses.replace(
        REAL,
        ngram=dataclasses.replace(
            NGRAM,
            head_rows=(HEAD_ROWS,) * len(NGRAM.head_rows),
            head_offsets=tuple(HEAD_ROWS * head for head in range(len(NGRAM.head_rows))),
        ),
    ),
}
