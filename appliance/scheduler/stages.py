"""How long prompts are cut so that stages read them side by side."""

from __future__ import annotations

import math
from typing import Final

FIXED_ROWS: Final = 2048
"""Rows that take as long as a chunk takes whatever its length: every weight is read and unpacked once a chunk."""


def pipelined_rows(tokens: int, *, stages: int) -> int:
    """Rows of a chunk with which a prompt of `tokens` tokens is read soonest.

    With n chunks the last stage ends after n + stages - 1 times a chunk's share: many short chunks fill the stages
    sooner, few long ones cost less. With a chunk of r rows taking FIXED_ROWS + r, the least is near
    r = sqrt(tokens * FIXED_ROWS / (stages - 1)); the chunks are of equal length.
    """
    if stages == 1:
        return tokens
    best = math.sqrt(tokens * FIXED_ROWS / (stages - 1))
    return math.ceil(tokens / max(1, round(tokens / best)))
