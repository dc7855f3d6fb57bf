"""Builds the next window: every decoding conversation with its drafts, then a bounded share of prompt reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.model.window import Span, Window
from appliance.scheduler.limits import Limits
from appliance.scheduler.session import Session


@dataclass(slots=True)
class ChunkTurns:
    """Turns that prompts had for themselves.

    Attributes:
        count: so far.
        last: whether the turn before was one.
    """

    count: int = 0
    last: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """A window and the sessions of its spans, in the same order; the first `decoding` of them decode."""

    window: Window
    sessions: tuple[Session, ...]
    decoding: int


def fair_shares(wants: Sequence[int], budget: int) -> list[int]:
    """Splits `budget` so that nobody gets more than wanted and no one's share can grow without a smaller one shrinking.

    Where rows are scarcer than askers, the earlier of equal askers win; callers rotate the order.
    """
    shares = [0] * len(wants)
    order = sorted(range(len(wants)), key=lambda index: wants[index])
    for place, index in enumerate(order):
        share = min(wants[index], -(-budget // (len(order) - place)))
        shares[index] = share
        budget -= share
    return shares


def build_turn(
    decoding: Sequence[Session], reading: Sequence[Session], *, limits: Limits, chunks: ChunkTurns
) -> Turn | None:
    """Composes a window; None if there is nobody to compute for.

    A prompt never takes more than `limits.prompt_chunk` rows of a window, so the decoders wait for one chunk at most.
    Where the model reads long prompts in turns of their own, those alternate with the windows of all others, and
    several long prompts take them one after the other.

    Args:
        decoding: sessions that decode.
        reading: sessions that read, those to be served first at the front.
        limits: the scheduler's.
        chunks: changed by this turn.
    """
    long = sorted((session for session in reading if is_long(session, limits)), key=lambda session: session.slot)
    others = bool(decoding) or len(long) < len(reading)
    chunks.last = bool(long) and not (others and chunks.last)
    if chunks.last:
        session = long[chunks.count % len(long)]
        chunks.count += 1
        return chunk_turn(session, rows=limits.chunk_of(session.prompt_tokens - session.read, shared=others))
    reading = [session for session in reading if session not in long]
    spans = [_decode_span(session) for session in decoding]
    scorers = sum(session.request.prompt_logprobs is not None for session in reading)
    scored_rows = max(1, limits.scored_chunk // max(1, scorers))
    most = limits.span_rows or limits.prompt_chunk
    wants = [min(most, _wanted_rows(session, scored_rows=scored_rows)) for session in reading]
    readers: list[Session] = []
    budget = limits.prompt_rows(sum([span.rows for span in spans]))
    for session, rows in zip(reading, fair_shares(wants, budget), strict=True):
        if rows:
            readers.append(session)
            spans.append(_read_span(session, rows))
    if not spans:
        return None
    return Turn(Window(tuple(spans)), (*decoding, *readers), len(decoding))


def chunk_turn(session: Session, *, rows: int) -> Turn:
    """A turn that a prompt has for itself."""
    return Turn(Window((_read_span(session, rows),)), (session,), 0)


def is_long(session: Session, limits: Limits) -> bool:
    """Whether its prompt has turns of its own; the rows of one that is scored yield logits, and those are bounded."""
    left = session.prompt_tokens - session.read
    return session.request.prompt_logprobs is None and limits.chunk_of(left, shared=True) > 0


def _decode_span(session: Session) -> Span:
    if session.due:
        return Span(slot=session.slot, start=-1, tokens=(), draft_count=session.wanted)
    tokens = (session.output[-1], *session.drafts)
    return Span(slot=session.slot, start=session.length, tokens=tokens, draft_count=len(session.drafts))


def _read_span(session: Session, rows: int) -> Span:
    tokens = session.request.prompt_ids[session.read : session.read + rows]
    if session.request.prompt_logprobs is not None:
        logits_from = 0
    elif session.read + rows == session.prompt_tokens:
        logits_from = rows - 1
    else:
        logits_from = rows
    return Span(slot=session.slot, start=session.read, tokens=tokens, logits_from=logits_from)


def _wanted_rows(session: Session, *, scored_rows: int) -> int:
    left = session.prompt_tokens - session.read
    return left if session.request.prompt_logprobs is None else min(left, scored_rows)
