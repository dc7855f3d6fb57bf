"""Where the rows of each span lie in a window's logits; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.model.window import Span
from appliance.scheduler.session import Session
from appliance.scheduler.windows import Turn


@dataclass(frozen=True, slots=True)
class Place:
    """One span.

    Attributes:
        span, session: what was computed for whom.
        first: its first row of logits.
        drawn: how many of its rows, the last ones, continue the answer.
    """

    span: Span
    session: Session
    first: int
    drawn: int

    @property
    def drawn_rows(self) -> range:
        """Rows of logits whose token is drawn."""
        end = self.first + self.span.logit_rows
        return range(end - self.drawn, end)


def places_of(turn: Turn) -> list[Place]:
    """The spans of a turn, in order."""
    places: list[Place] = []
    first = 0
    for index, (span, session) in enumerate(zip(turn.window.spans, turn.sessions, strict=True)):
        if index < turn.decoding:
            drawn = span.logit_rows
        else:
            ends = span.start + len(span.tokens) == session.prompt_tokens
            drawn = int(ends and session.answer_tokens > 0)
        places.append(Place(span, session, first, drawn))
        first += span.logit_rows
    return places
