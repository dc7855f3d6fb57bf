"""What one forward pass is asked and what is decided about it afterwards; torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive rows of one session in a window.

    A prompt chunk, one decode row and a row with its drafts are the same thing at different lengths.

    Attributes:
        slot: the session's slot.
        start: position of the first row; equals the slot's committed length. -1 with no tokens.
        tokens: token ids of the rows, at positions start, start + 1, ... None: the slot's last window is on its way,
            and the device alone will know them: the token that follows what stands, then the drafts after it.
        draft_count: how many trailing rows are drafts, not yet known to be kept; with no tokens, at most so many.
        logits_from: first row (index within the span) whose logits are wanted; len(tokens) for none.
    """

    slot: int
    start: int
    tokens: tuple[int, ...]
    draft_count: int = 0
    logits_from: int = 0

    @property
    def rows(self) -> int:
        """Rows of the window; with no tokens, at most so many."""
        return len(self.tokens) or 1 + self.draft_count

    @property
    def logit_rows(self) -> int:
        """How many rows of logits the span yields."""
        return len(self.tokens) - self.logits_from


@dataclass(frozen=True, slots=True)
class Window:
    """One forward pass: spans of different slots, in the order of their rows. No slot twice."""

    spans: tuple[Span, ...]

    @property
    def rows(self) -> int:
        """Rows of the whole window."""
        return sum([len(span.tokens) or 1 + span.draft_count for span in self.spans])


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What became of a span: the first `kept` rows are part of the conversation, the rest never were.

    Attributes:
        slot: the session's slot.
        kept: rows of the slot's last span that stay, 1 to len(tokens).
        next_token: the token that follows the last kept row: the sampled one, or the next of the prompt.
        draft_max: how many drafts to propose after next_token; 0 for none.
        draft_min_p: the drafter's probability below which a proposal ends (the token below it is not offered).
    """

    slot: int
    kept: int
    next_token: int
    draft_max: int = 0
    draft_min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens to follow `Commit.next_token`, with the drafter's probability of each."""

    slot: int
    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]
