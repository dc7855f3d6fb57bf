"""The pieces an answer reaches its client in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class DeltaKind(StrEnum):
    """Where a delta goes."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"
    TOOL_ARGUMENTS = "tool_arguments"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A piece of the answer. Joining the texts of one kind (and one call) gives the non-streamed answer exactly.

    Attributes:
        text: content, reasoning or arguments text; "" for TOOL_CALL.
        tokens: positions in the choice's output (0 is the first token fed) of the tokens this text came from, rising.
            A position is in one delta at most. Log-probabilities: the chunk that carries a CONTENT delta carries those
            of exactly these positions. Tags, calls and text cut off by a stop string have none.
        call_index: 0-based number of the call, for TOOL_CALL (sent first) and TOOL_ARGUMENTS.
        call_id, call_name: for TOOL_CALL.
    """

    kind: DeltaKind
    text: str = ""
    tokens: tuple[int, ...] = ()
    call_index: int | None = None
    call_id: str | None = None
    call_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCall:
    """A call of the whole answer; arguments is a JSON object as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole answer. content_tokens: positions whose log-probabilities belong to content."""

    content: str
    reasoning: str
    calls: tuple[AnswerCall, ...]
    content_tokens: tuple[int, ...]


def join(deltas: Iterable[Delta]) -> Answer:
    """The non-streamed answer."""
    everything = tuple(deltas)
    texts = {
        kind: "".join(delta.text for delta in everything if delta.kind is kind)
        for kind in (DeltaKind.CONTENT, DeltaKind.REASONING)
    }
    calls = tuple(
        AnswerCall(
            id=start.call_id or "",
            name=start.call_name or "",
            arguments="".join(
                delta.text
                for delta in everything
                if delta.kind is DeltaKind.TOOL_ARGUMENTS and delta.call_index == start.call_index
            ),
        )
        for start in everything
        if start.kind is DeltaKind.TOOL_CALL
    )
    return Answer(
        content=texts[DeltaKind.CONTENT],
        reasoning=texts[DeltaKind.REASONING],
        calls=calls,
        content_tokens=tuple(p for delta in everything if delta.kind is DeltaKind.CONTENT for p in delta.tokens),
    )
