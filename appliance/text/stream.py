"""Token ids of one choice to what the client reads: content, reasoning and tool calls, in deltas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from appliance.text.chat import Tool
from appliance.text.tokenizer import Tokenizer


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
        tokens: positions in the choice's output (0 is the first token fed) of the tokens this text came from, rising;
            a position is in at most one delta of the choice. logprobs: attach those of exactly these positions to the chunk
            that carries a CONTENT delta. Tags, calls and text cut by a stop string have none.
        call_index: 0-based call number, for TOOL_CALL (sent first) and TOOL_ARGUMENTS.
        call_id, call_name: for TOOL_CALL.
    """

    kind: DeltaKind
    text: str = ""
    tokens: tuple[int, ...] = ()
    call_index: int | None = None
    call_id: str | None = None
    call_name: str | None = None


class OutputParser:
    """One choice's answer. Feed it every token the engine yields, then finish it once."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stops: Sequence[str] = (),
        thinking_open: bool = False,
        tools: Sequence[Tool] = (),
        plain: bool = False,
    ) -> None:
        """plain=True (completions): no tags, no calls; all text is content. tools: only with tool_choice auto."""
        raise NotImplementedError

    def feed(self, ids: Iterable[int]) -> tuple[Delta, ...]:
        """Deltas that are certain after these tokens. Tokens after a matched stop string are ignored."""
        raise NotImplementedError

    def finish(self) -> tuple[Delta, ...]:
        """The rest: held text, unfinished bytes, calls whose end is the end of the turn. Once, after the last feed."""
        raise NotImplementedError

    def finish_reason(self, reason: str) -> str:
        """OpenAI's finish_reason for the engine's reason ("stop", "length", ...); call it after finish()."""
        raise NotImplementedError

    @property
    def stopped(self) -> bool:
        """A stop string matched: cancel the engine's request and finish with "stop"."""
        raise NotImplementedError

    @property
    def kept_tokens(self) -> int:
        """Tokens fed, or up to and with the one that completed the stop string; then this is completion_tokens."""
        raise NotImplementedError

    @property
    def reasoning_tokens(self) -> int:
        """How many of the kept tokens belong to the thinking, its closing tag included."""
        raise NotImplementedError
