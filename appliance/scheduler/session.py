"""One conversation's turn on the engine, from queue to end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from appliance.scheduler.planner import Acceptance
from appliance.scheduler.request import GenerationRequest, TokenLogprob, Usage


class SessionState(StrEnum):
    """Where a session is; it only ever moves down this list."""

    QUEUED = "queued"
    READING = "reading"
    DECODING = "decoding"
    DONE = "done"


@dataclass(slots=True, eq=False, kw_only=True)
class Session:
    """A request and how far it has come. Compared by identity: two requests may carry the same id.

    Attributes:
        request: what was asked.
        answer_tokens: tokens it may generate; max_tokens, or less where the context ends.
        acceptance: its drafts.
        queued_s: when it was submitted, on the monotonic clock.
        state, slot, pages: slot -1 and no pages unless reading or decoding.
        group: which windows carry it (see groups.py).
        flying: windows with it that are on their way.
        due: those of them that draw for it, a token at least each.
        wanted: drafts to verify in its next window if that is sent while one is due.
        doubtful: an answer that is not settled yet may end it.
        read: prompt tokens in the slot's state.
        output: tokens drawn, a stop token included. The last one is not in the slot's state yet.
        drafts: proposals to verify after the last output token.
        run: how many times in a row the last output token came.
        scores: log-probabilities of the prompt so far, when wanted.
        cancelled: set by the client's side at any time, read by the engine between windows.
    """

    request: GenerationRequest
    answer_tokens: int
    acceptance: Acceptance
    queued_s: float = 0.0
    state: SessionState = SessionState.QUEUED
    slot: int = -1
    pages: tuple[int, ...] = ()
    group: int = 0
    flying: int = 0
    due: int = 0
    wanted: int = 0
    doubtful: bool = False
    read: int = 0
    output: list[int] = field(default_factory=list)
    drafts: tuple[int, ...] = ()
    run: int = 0
    scores: list[TokenLogprob | None] = field(default_factory=list)
    cancelled: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_ids)

    @property
    def length(self) -> int:
        """Tokens in the slot's state: the next window's first position."""
        return self.read + max(0, len(self.output) - 1)

    @property
    def room(self) -> int:
        """Tokens it may still generate."""
        return self.answer_tokens - len(self.output)

    @property
    def reserved_tokens(self) -> int:
        """Positions it can ever need; drafts are planned to stay inside (see planner.plan_depth)."""
        return self.prompt_tokens + self.answer_tokens

    def usage(self) -> Usage:
        """What it has used until now."""
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=len(self.output),
            drafts_offered=sum(self.acceptance.offered),
            drafts_accepted=sum(self.acceptance.accepted),
        )
