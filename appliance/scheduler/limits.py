"""The scheduler's bounds, decided by the placement and never changed while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from appliance.scheduler.costs import USUAL, Slopes

SHARED_CHUNK_ROWS: Final = 512
"""Rows of a prompt's own turn while others wait for it: a few windows' time, at most of a chunk's speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one window and one conversation may take.

    Attributes:
        slots: conversations decoded together.
        prompt_chunk: rows of prompt reading in one window, all readers together.
        scored_chunk: the same for prompts whose own log-probabilities are wanted (each row yields logits).
        draft_max: longest draft.
        draft_min_p: the drafter's probability below which a draft ends.
        batch_mtp: drafts in every window; False: only while one conversation decodes.
        repeat_limit: length of a run of one token id that ends a request; 0 never.
        window_rows: rows of the largest window, at least one for each slot; None where only the others bound it.
        span_rows: rows of one prompt in a window; None where only the others bound it.
        chunk_rows: rows of a turn that a longer prompt has for itself; None where all prompts share windows.
        groups: windows that may be on their way at once, each of other conversations.
        fixed_sizes: every size of a window is a graph that has to be captured first.
        slopes: what rows and draft steps are expected to cost, until it is measured.
    """

    slots: int
    prompt_chunk: int
    scored_chunk: int
    draft_max: int
    draft_min_p: float
    batch_mtp: bool
    repeat_limit: int
    window_rows: int | None = None
    span_rows: int | None = None
    chunk_rows: int | None = None
    groups: int = 1
    fixed_sizes: bool = False
    slopes: Slopes = USUAL

    def drafts_of(self, sessions: int) -> int:
        """Drafts for each conversation that leave all `sessions` of them a fair share of a window's rows."""
        if self.window_rows is None:
            return self.draft_max
        return min(self.draft_max, self.window_rows // max(1, sessions) - 1)

    def chunk_of(self, left: int, *, shared: bool) -> int:
        """Rows of a prompt's own turn, 0 if what is `left` of it fits a window; fewer if others wait for its end."""
        if self.chunk_rows is None or left <= (self.span_rows or self.prompt_chunk):
            return 0
        return min(left, self.chunk_rows, *([SHARED_CHUNK_ROWS] if shared else []))

    def prompt_rows(self, decode_rows: int) -> int:
        """Rows of prompt reading beside `decode_rows` rows of decoding."""
        if self.window_rows is None:
            return self.prompt_chunk
        return min(self.prompt_chunk, self.window_rows - decode_rows)
