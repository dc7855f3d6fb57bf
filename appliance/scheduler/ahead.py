"""Windows that are sent before the last one is back: what is settled when one is sent, and what when it lands.

A conversation that ends in a window may be in the next one, which is on its way by then. Its rows there are nobody's:
they are dropped, and its slot and its pages are free once that window is back. No text depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from appliance.errors import EngineFault
from appliance.scheduler.commit import Drawn
from appliance.scheduler.limits import Limits
from appliance.scheduler.scheduler import Scheduler, SessionEvent
from appliance.scheduler.session import Session, SessionState
from appliance.scheduler.windows import Turn, is_long


class Outcome(Protocol):
    """What became of a span; see `appliance.model.interface.Stepped`."""

    @property
    def tokens(self) -> Sequence[int]: ...  # noqa: D102

    @property
    def finite(self) -> Sequence[bool]: ...  # noqa: D102

    @property
    def kept(self) -> int: ...  # noqa: D102

    @property
    def drafts(self) -> tuple[int, ...]: ...  # noqa: D102


def send(scheduler: Scheduler, turn: Turn) -> None:
    """A turn is on its way. Prompt rows count as read: whatever is drawn, they stay."""
    for index, session in enumerate(turn.sessions):
        session.flying += 1
        if index >= turn.decoding:
            rows = turn.window.spans[index].rows
            session.read += rows
            scheduler.prompt_tokens += rows
            if session.read < session.prompt_tokens:
                continue
            session.state = SessionState.DECODING
        session.due += 1


def arrive(scheduler: Scheduler, turn: Turn) -> None:
    """The oldest window is back; what those hold that had ended before is free. Its answer is settled by `land`."""
    for session in turn.sessions:
        session.flying -= 1
        if session.state is SessionState.DONE and not session.flying:
            scheduler.free(session)


def doubt(turn: Turn, ids: Sequence[int], bad: Sequence[int], rows: Sequence[int]) -> None:
    """Marks whom the turn's answer may end, so that the next window goes without them; exactly, `land` decides.

    Args:
        turn: whose answer it is.
        ids: drawn at all rows.
        bad: of each row, not 0 where its logits were no numbers.
        rows: of each span.
    """
    first = 0
    for index, session in enumerate(turn.sessions):
        stop = first + rows[index]
        drawn = range(first if index < turn.decoding else max(first, stop - 1), stop)
        first = stop
        if session.state is SessionState.DECODING and rows[index]:
            stops = session.request.stop_token_ids
            session.doubtful = any(bad[row] or ids[row] in stops for row in drawn)


def land(scheduler: Scheduler, turn: Turn, outcomes: Sequence[Outcome]) -> list[SessionEvent]:
    """Takes what became of the window that arrived last; returns what the clients hear.

    Raises:
        EngineFault: the device kept or verified other rows of a conversation than the host.
    """
    events: list[SessionEvent] = []
    for index, (session, outcome) in enumerate(zip(turn.sessions, outcomes, strict=True)):
        session.doubtful = False
        if outcome.tokens:
            session.due -= 1
        if session.state is SessionState.DONE:
            continue
        if index < turn.decoding:
            _decoded(scheduler, session, outcome, events)
        else:
            _read(scheduler, session, outcome, events, rows=turn.window.spans[index].rows)
    return events


def repeats(turn: Turn, limits: Limits) -> int:
    """How often a turn that was just sent may be sent again; as it is, if no answer ends anybody and nobody comes.

    Every conversation must have room for all rows of all windows until then; 0 where the host knows some rows.
    """
    most = limits.draft_max + 1
    if any(span.tokens for span in turn.window.spans):
        return 0
    return min(session.room // most - session.due for session in turn.sessions)


def long_alone(scheduler: Scheduler) -> bool:
    """Whether the next turn is a chunk of a long prompt and nobody else runs."""
    limits, running = scheduler.limits, scheduler.running
    return all(session.state is SessionState.READING and is_long(session, limits) for session in running)


def _decoded(scheduler: Scheduler, session: Session, outcome: Outcome, events: list[SessionEvent]) -> None:
    offered = len(outcome.tokens) - 1
    if offered > len(session.drafts):
        raise EngineFault(
            f"slot {session.slot}: the device verified {offered} drafts and had proposed {len(session.drafts)}; "
            "their states differ"
        )
    session.drafts = session.drafts[:offered]
    accepted = scheduler.take(session, Drawn(outcome.tokens, outcome.finite), events)
    if accepted is not None:
        _go_on(session, outcome, rows=accepted + 1)


def _read(scheduler: Scheduler, session: Session, outcome: Outcome, events: list[SessionEvent], *, rows: int) -> None:
    if not outcome.tokens:
        _require(session, outcome, rows=rows)
    elif scheduler.take(session, Drawn(outcome.tokens, outcome.finite), events) is not None:
        _go_on(session, outcome, rows=rows)


def _go_on(session: Session, outcome: Outcome, *, rows: int) -> None:
    _require(session, outcome, rows=rows)
    session.drafts = outcome.drafts


def _require(session: Session, outcome: Outcome, *, rows: int) -> None:
    if outcome.kept != rows:
        raise EngineFault(
            f"slot {session.slot}: the device kept {outcome.kept} rows and the host {rows}; their states differ"
        )
