"""Which windows are prompt chunks, and what is left of them once their layers have run: a window of the last row."""

from __future__ import annotations

from dataclasses import dataclass, replace

from appliance.model.window import Commit, Span, Window

MOST_SPAN_ROWS = 13
"""Rows of a prompt that a decode window takes."""


@dataclass(frozen=True, slots=True)
class ChunkTail:
    """A chunk of one conversation.

    Attributes:
        slot: whose it is.
        start: position of the first row.
        tokens: of all rows.
        window: of the last row alone.
    """

    slot: int
    start: int
    tokens: tuple[int, ...]
    window: Window

    @classmethod
    def of(cls, slot: int, start: int, tokens: tuple[int, ...], *, logits_from: int = 0) -> ChunkTail:
        """A chunk, of whose last row the logits are wanted unless `logits_from` is 1."""
        last = Span(slot=slot, start=start + len(tokens) - 1, tokens=tokens[-1:], logits_from=logits_from)
        return cls(slot, start, tokens, Window((last,)))

    @property
    def before(self) -> int:
        """Rows before the last: they stay, whatever is decided about it."""
        return len(self.tokens) - 1

    def commit(self, commit: Commit) -> Commit:
        """What a commit of the chunk says of the last row."""
        return replace(commit, kept=commit.kept - self.before)


def chunk_tail(window: Window, *, chunk_rows: int) -> ChunkTail | None:
    """The chunk that a window is: more rows of one prompt than decode windows take; None for any other window.

    A chunk has no drafts, and at most the logits of its last row are wanted.
    """
    span = window.spans[0]
    count = len(span.tokens)
    plain = len(window.spans) == 1 and not span.draft_count and span.logits_from >= count - 1
    if not plain or not MOST_SPAN_ROWS < count <= chunk_rows:
        return None
    return ChunkTail.of(span.slot, span.start, span.tokens, logits_from=span.logits_from - count + 1)
