"""Continuous batching: who has a slot, what the next window computes, and what its result means for each session."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.errors import EngineFault
from appliance.model.window import Commit, Draft
from appliance.scheduler.commit import NOT_FINITE, Drawn, judge
from appliance.scheduler.drafting import DraftPlanner
from appliance.scheduler.groups import Groups
from appliance.scheduler.limits import Limits
from appliance.scheduler.pages import PagePool
from appliance.scheduler.planner import drafts_on, plan_depth
from appliance.scheduler.queue import RequestQueue
from appliance.scheduler.request import Event, Finished, FinishReason, PromptScored, Tokens
from appliance.scheduler.session import Session, SessionState
from appliance.scheduler.stages import pipelined_rows
from appliance.scheduler.windows import ChunkTurns, Turn, build_turn, chunk_turn, is_long

SessionEvent = tuple[Session, Event]


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome of a window: what the model keeps, and what the clients hear."""

    commits: tuple[Commit, ...]
    events: list[SessionEvent]


class Scheduler:
    """Owned by the engine's thread; only the queue is shared."""

    def __init__(self, limits: Limits, *, queue: RequestQueue, pages: PagePool) -> None:
        """Nobody runs yet."""
        self.limits = limits
        self.queue = queue
        self.pages = pages
        self.running: list[Session] = []
        self.groups = Groups(limits.groups)
        self.drafting = DraftPlanner(limits)
        self.finished: Counter[str] = Counter({str(reason): 0 for reason in FinishReason})
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.nonfinite_rows = 0
        self.past_offered = [0] * limits.draft_max
        self.past_accepted = [0] * limits.draft_max
        self._free_slots = list(range(limits.slots - 1, -1, -1))
        self._started_s: dict[Session, float] = {}
        self._turns = [0] * limits.groups
        self._chunks = [ChunkTurns() for _ in range(limits.groups)]
        self._reads = 0

    def admit(self) -> list[Session]:
        """Gives slots and pages to waiting requests, in order, while both last; the caller opens the slots."""
        admitted: list[Session] = []
        while self._free_slots:
            session = self.queue.start_next(lambda waiting: self.pages.fits(waiting.reserved_tokens))
            if session is None:
                break
            session.slot = self._free_slots.pop()
            session.pages = self.pages.take(session.reserved_tokens)
            session.state = SessionState.READING
            self.groups.join(session)
            self._started_s[session] = time.monotonic()
            self.running.append(session)
            admitted.append(session)
        return admitted

    def end_cancelled(self, *, flying: bool = False) -> list[SessionEvent]:
        """Ends every session whose client left, in whatever state; one in a window on its way only with `flying`."""
        gone = self.queue.take_cancelled()
        gone += [session for session in self.running if session.cancelled and (flying or not session.flying)]
        return [self.end(session, FinishReason.CANCELLED) for session in gone]

    def end_waiting(self) -> list[SessionEvent]:
        """Ends every waiting session as cancelled."""
        return [self.end(session, FinishReason.CANCELLED) for session in self.queue.take_cancelled(everyone=True)]

    def end_running(self) -> list[SessionEvent]:
        """Ends every session that has a slot as cancelled."""
        return [self.end(session, FinishReason.CANCELLED) for session in list(self.running)]

    def next_turn(self, group: int = 0, *, ahead: bool = False) -> Turn | None:
        """Composes the next window of a group that has none on its way; None when nobody of it runs.

        Where there are several groups, long prompts are read beside them: see `next_read`.

        Args:
            group: whose window.
            ahead: also for those with windows on their way, unless those will end them (see ahead.py).
        """
        if ahead:
            own = [one for one in self.running if not one.doubtful and (not one.due or one.room > one.due)]
        else:
            own = [session for session in self.running if session.group == group and not session.flying]
        decoding = [session for session in own if session.state is SessionState.DECODING]
        reading = [session for session in own if session.state is SessionState.READING]
        if self.limits.groups > 1:
            reading = [session for session in reading if not is_long(session, self.limits)]
        limits, everybody = self.limits, self._decoding()
        most = limits.drafts_of(len(own)) if drafts_on(limits, decoding=everybody) else 0
        if not ahead or not self.drafting.stands(group):  # else it is looked at when the turn was sent
            self.drafting.plan(self.running, decoding, group=group, sharing=len(own))
        for session in decoding:
            depth = plan_depth(session.acceptance, room=session.room - session.due, limits=limits, decoding=everybody)
            session.wanted = min(most, depth)
            if not session.due:
                session.drafts = session.drafts[: session.wanted]
        if len(reading) > 1:
            first = self._turns[group] % len(reading)
            reading = reading[first:] + reading[:first]
        self._turns[group] += 1
        return build_turn(decoding, reading, limits=limits, chunks=self._chunks[group])

    def next_read(self, *, stages: int) -> Turn | None:
        """Composes the next chunk of a long prompt that `stages` stages read; None when there is none to send."""
        reading = [one for one in self.running if one.state is SessionState.READING and is_long(one, self.limits)]
        waiting = [session for session in reading if not session.flying]
        if not waiting:
            return None
        session = waiting[self._reads % len(waiting)]
        self._reads += 1
        shared = len(reading) < len(self.running)
        rows = self.limits.chunk_of(session.prompt_tokens - session.read, shared=shared)
        return chunk_turn(session, rows=min(rows, pipelined_rows(session.prompt_tokens, stages=stages)))

    def settle(self, turn: Turn, drawn: Sequence[Drawn]) -> Settled:
        """Applies what was drawn for each span of the turn, in its order."""
        kept: list[tuple[Session, int, int]] = []
        events: list[SessionEvent] = []
        for index, (session, result) in enumerate(zip(turn.sessions, drawn, strict=True)):
            rows = len(turn.window.spans[index].tokens)
            if index >= turn.decoding and self._read_on(session, result, events, rows=rows):
                kept.append((session, rows, session.request.prompt_ids[session.read]))
            elif session.state is SessionState.DECODING:
                accepted = self.take(session, result, events)
                if accepted is not None:
                    kept.append((session, rows if index >= turn.decoding else accepted + 1, session.output[-1]))
        decoding = self._decoding()
        return Settled(tuple(self._commit(*row, decoding=decoding) for row in kept), events)

    def offer(self, turn: Turn, drafts: Sequence[Draft]) -> None:
        """Takes the proposals for the sessions of a settled turn, which their next window verifies."""
        by_slot = {draft.slot: draft.tokens for draft in drafts}
        for session in turn.sessions:
            session.drafts = by_slot.get(session.slot, ()) if session.state is SessionState.DECODING else ()

    def end(self, session: Session, reason: FinishReason, *, error: tuple[str, str] | None = None) -> SessionEvent:
        """Ends a session in whatever state; returns its last event.

        What it holds is free now, or once the last window with it is back (see ahead.py).
        """
        if session.slot >= 0:
            self.running.remove(session)
            self.groups.leave(session)
            if not session.flying:
                self.free(session)
        session.state = SessionState.DONE
        session.drafts = ()
        self.finished[str(reason)] += 1
        for depth in range(self.limits.draft_max):
            self.past_offered[depth] += session.acceptance.offered[depth]
            self.past_accepted[depth] += session.acceptance.accepted[depth]
        sentence, code = error or (None, None)
        return session, Finished(
            request_id=session.request.id, reason=reason, usage=session.usage(), error=sentence, error_code=code
        )

    def free(self, session: Session) -> None:
        """Gives back the slot and the pages of a session that has ended."""
        self._free_slots.append(session.slot)
        self.pages.give_back(session.pages)
        self.queue.ended(time.monotonic() - self._started_s.pop(session))
        session.slot, session.pages = -1, ()

    def check_idle(self) -> None:
        """Checks that nothing was lost, when nobody runs.

        Raises:
            EngineFault: a page or a slot is held by nobody.
        """
        self.pages.check_idle()
        if sorted(self._free_slots) != list(range(self.limits.slots)):
            raise EngineFault(
                f"idle engine has free slots {sorted(self._free_slots)} of {self.limits.slots}; restart it"
            )

    def _decoding(self) -> int:
        return sum(session.state is SessionState.DECODING for session in self.running)

    def _read_on(self, session: Session, result: Drawn, events: list[SessionEvent], *, rows: int) -> bool:
        """Advances a prompt by `rows`; True while more of it is left, else the session decodes or has ended."""
        session.read += rows
        self.prompt_tokens += rows
        session.scores.extend(result.scores)
        if not result.scores_finite:
            self.nonfinite_rows += 1
            events.append(self.end(session, FinishReason.ERROR, error=NOT_FINITE))
            return False
        if session.read < session.prompt_tokens:
            return True
        if session.request.prompt_logprobs is not None:
            scores = (None, *session.scores)
            events.append((session, PromptScored(request_id=session.request.id, logprobs=scores)))
            session.scores = []
        if session.answer_tokens == 0:
            events.append(self.end(session, FinishReason.LENGTH))
        else:
            session.state = SessionState.DECODING
        return False

    def take(self, session: Session, result: Drawn, events: list[SessionEvent]) -> int | None:
        """Takes a span's drawn tokens; returns how many drafts stand, or None if the session ended."""
        offered = len(session.drafts)
        verdict = judge(session, result, repeat_limit=self.limits.repeat_limit)
        session.acceptance.record(offered, verdict.accepted)
        self.generated_tokens += len(verdict.visible) + (verdict.reason is FinishReason.STOP)
        if verdict.visible:
            logprobs = None if result.logprobs is None else tuple(result.logprobs[: len(verdict.visible)])
            events.append((session, Tokens(request_id=session.request.id, ids=verdict.visible, logprobs=logprobs)))
        if verdict.reason is None:
            return verdict.accepted
        self.nonfinite_rows += verdict.error is NOT_FINITE
        events.append(self.end(session, verdict.reason, error=verdict.error))
        return None

    def _commit(self, session: Session, kept: int, next_token: int, *, decoding: int) -> Commit:
        depth = 0
        if session.state is SessionState.DECODING:
            depth = plan_depth(session.acceptance, room=session.room, limits=self.limits, decoding=decoding)
        return Commit(
            slot=session.slot,
            kept=kept,
            next_token=next_token,
            draft_max=depth,
            draft_min_p=self.limits.draft_min_p,
        )
