"""The scheduler's bounds, decided by the placement and never changed while it runs."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    slots: int
    prompt_chunk: int
    scored_chunk: int
    draft_max: int
    draft_min_p: float
    batch_mtp: bool
    repeat_limit: int
