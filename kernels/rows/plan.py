"""The host's plan of a window: a few integers, copied to the device in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

COLUMNS = 6
"""Integers of a span: slot, rows wanted, certain rows, start, next token, place of its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanPlan:
    """One span as the host sees it.

    Attributes:
        slot: the session's slot.
        rows: at most; with tokens exactly.
        tokens: of the rows. Empty: the device knows them: the slot's next token, then its drafts as far as `rows` goes.
        start: position of the first row; needed with tokens, else the slot's length on the device.
        certain: rows that are no drafts; only with tokens.
        next_token: the token after the span where the host knows it (a prompt goes on); None: it is drawn.
    """

    slot: int
    rows: int
    tokens: tuple[int, ...] = ()
    start: int = -1
    certain: int = 1
    next_token: int | None = None


def plan_size(bucket: int) -> int:
    """int32 values of a plan for a bucket of this many rows."""
    return 1 + (COLUMNS + 1) * bucket


def pack_plan(spans: Sequence[SpanPlan], *, bucket: int, out: np.ndarray) -> None:
    """Writes a plan into a host buffer: the number of spans, the spans column by column, then the tokens.

    Args:
        spans: of different slots.
        bucket: rows of the window.
        out: int32 [plan_size(bucket)].

    Raises:
        ValueError: more rows than the bucket, a slot twice, or a span whose numbers do not fit together.
    """
    rows = sum(span.rows for span in spans)
    if rows > bucket:
        raise ValueError(f"a window of {rows} rows does not fit a bucket of {bucket}")
    if len({span.slot for span in spans}) != len(spans):
        raise ValueError(f"every slot has one span of a window, found slots {[span.slot for span in spans]}")
    table: list[tuple[int, ...]] = []
    tokens: list[int] = []
    at = 0
    for span in spans:
        given = len(span.tokens)
        if span.rows < 1 or (given and (given != span.rows or span.start < 0 or not 1 <= span.certain <= given)):
            raise ValueError(f"{span}: rows, tokens, start and certain rows do not fit together")
        start = span.start if given else -1
        following = -1 if span.next_token is None else span.next_token
        table.append((span.slot, span.rows, span.certain if given else 1, start, following, at))
        tokens += span.tokens
        at += given
    # Two assignments: each costs as much as a few spans, and the device waits.
    out[0] = len(spans)
    if table:
        out[1 : 1 + COLUMNS * bucket].reshape(COLUMNS, bucket)[:, : len(table)] = np.array(table, dtype=np.int32).T
    out[1 + COLUMNS * bucket :][: len(tokens)] = tokens
