"""Token ids of one choice to what the client reads: content, reasoning and tool calls, in deltas.

Everything is decided from the text as a whole: how tokens arrive in feeds and whether it is streamed change nothing.

- Thinking ends at `</think>`, as its token or spelled with ordinary ones; not where the tag is quoted (directly behind
  a quote or backtick that is open on its line), nor where it is spelled inside a code fence. Behind it tags are text.
- The answer starts in the thinking when the prompt left it open, or when its first text is `<think>`.
- Newlines around the thinking belong to the template: they are in neither field.
- Stop strings apply to content only, not to the thinking and not to calls.
- Calls are looked for when tools are given (calls.py has the grammar). A call is handed on when it is complete. White
  space before a call is dropped, unless content follows the call. In the thinking, complete calls count when
  nothing but a closing tag follows them to the end of the turn; otherwise they are thoughts.
- Control tokens are no text. Bytes that are not UTF-8 become one U+FFFD each.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence

from appliance.text.arguments import dump_arguments
from appliance.text.calls import ParsedCall
from appliance.text.chat import Tool
from appliance.text.deltas import Delta, DeltaKind
from appliance.text.runs import Run, Utf8
from appliance.text.sections import Piece, PieceKind, Sections
from appliance.text.sinks import StopMatcher, Trailing
from appliance.text.tokenizer import Tokenizer

__all__ = ["Delta", "DeltaKind", "OutputParser"]


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"


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
        new_id: Callable[[], str] = _new_id,
    ) -> None:
        """Makes a parser.

        Args:
            thinking_open: RenderedPrompt.thinking_open.
            tools: only with tool_choice auto; without tools call markup is text.
            plain: no tags, no calls, all text is content (completions).
            new_id: makes the ids of tool calls.
        """
        self._tokenizer = tokenizer
        self._utf8 = Utf8()
        self._sections = Sections(tools=tools, thinking_open=thinking_open, plain=plain)
        self._stop = StopMatcher(stops)
        self._reasoning = Trailing(drop_leading=True)
        # Without tools nothing can follow content, so white space need not wait.
        self._content = Trailing(drop_leading=False) if tools and not plain else None
        # Without stop strings and tools no text waits, once the thinking is over.
        self._plain = not any(stops) and self._content is None
        self._after_thinking = False
        self._new_id = new_id
        self._close_id = tokenizer.special_id("</think>")
        self._fed = 0
        self._calls = 0
        self._told = -1
        self._deltas: list[Delta] = []

    def feed(self, ids: Iterable[int]) -> tuple[Delta, ...]:
        """Deltas that are certain after these tokens. Tokens after a matched stop string are ignored.

        Raises:
            ValueError: an id outside the vocabulary.
        """
        if self._plain and not self._after_thinking and self._sections.passes_all:
            return self._feed_content(ids)
        for token_id in ids:
            if self.stopped:
                break
            run = self._decode(token_id)
            self._fed += 1
            if run:
                self._take(self._sections.feed(run))
        return self._give()

    def _feed_content(self, ids: Iterable[int]) -> tuple[Delta, ...]:
        """The same for tokens that can only be content, which are nearly all: their text is looked at once."""
        texts: list[str] = []
        owners: list[int] = []
        for token_id in ids:
            run = self._decode(token_id)
            self._fed += 1
            texts.append(run.text)
            owners += run.owners
        self._emit(DeltaKind.CONTENT, Run("".join(texts), tuple(owners)))
        return self._give()

    def finish(self) -> tuple[Delta, ...]:
        """The rest: held text, unfinished bytes, calls whose end is the end of the turn. Once, after the last feed."""
        self._take(self._sections.feed(self._utf8.flush()))
        self._take(self._sections.finish())
        self._emit_content(self._stop.release())
        if self._content is not None and not self._calls:
            self._emit(DeltaKind.CONTENT, self._content.release())
        return self._give()

    def finish_reason(self, reason: str) -> str:
        """OpenAI's finish_reason for the engine's reason ("stop", "length", ...); call it after finish()."""
        if self.stopped or reason == "stop":
            return "tool_calls" if self._calls else "stop"
        return str(reason)

    @property
    def stopped(self) -> bool:
        """A stop string matched: cancel the engine's request and finish with "stop". Can turn true in finish() too."""
        return self._stop.match_owner is not None

    @property
    def kept_tokens(self) -> int:
        """Tokens fed, or up to and with the one that completed the stop string; then this is completion_tokens."""
        return self._fed if self._stop.match_owner is None else self._stop.match_owner + 1

    @property
    def reasoning_tokens(self) -> int:
        """How many of the kept tokens belong to the thinking, its tags included."""
        first, behind = self._sections.thinking
        return 0 if first is None else max(0, min(self.kept_tokens if behind is None else behind, self._fed) - first)

    def _decode(self, token_id: int) -> Run:
        position = self._fed
        if self._tokenizer.is_control(token_id):
            self._tokenizer.token_bytes(token_id)
            return self._utf8.flush()
        data = self._tokenizer.token_bytes(token_id)
        if token_id == self._close_id:
            self._sections.close_positions.add(position)
        if self._tokenizer.is_special(token_id):
            return self._utf8.flush() + self._utf8.feed(data, position)
        return self._utf8.feed(data, position)

    def _take(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if piece.kind is PieceKind.CALL and piece.call is not None:
                self._emit_content(self._stop.release())
                if not self.stopped:
                    self._emit_call(piece.call)
            elif piece.kind is PieceKind.REASONING:
                self._emit(DeltaKind.REASONING, self._reasoning.feed(piece.run))
            elif piece.kind is PieceKind.THOUGHT_OVER:
                self._after_thinking = True
            else:
                self._emit_content(self._stop.feed(self._first_content(piece.run)))

    def _first_content(self, run: Run) -> Run:
        """Without the newlines that the template puts behind the thinking."""
        if self._after_thinking:
            run = run.without_leading("\r\n")
            self._after_thinking = not run
        return run

    def _emit_content(self, run: Run) -> None:
        self._emit(DeltaKind.CONTENT, run if self._content is None else self._content.feed(run))

    def _emit(self, kind: DeltaKind, run: Run) -> None:
        if not run:
            return
        tokens = tuple(p for p in self._utf8.positions(run.owners) if p > self._told)
        self._told = max(self._told, *tokens) if tokens else self._told
        last = self._deltas[-1] if self._deltas else None
        if last is not None and last.kind is kind:
            self._deltas[-1] = Delta(kind=kind, text=last.text + run.text, tokens=last.tokens + tokens)
        else:
            self._deltas.append(Delta(kind=kind, text=run.text, tokens=tokens))

    def _emit_call(self, call: ParsedCall) -> None:
        index = self._calls
        self._calls += 1
        self._deltas.append(
            Delta(kind=DeltaKind.TOOL_CALL, call_index=index, call_id=self._new_id(), call_name=call.name)
        )
        self._deltas.append(Delta(kind=DeltaKind.TOOL_ARGUMENTS, call_index=index, text=dump_arguments(call.arguments)))

    def _give(self) -> tuple[Delta, ...]:
        deltas, self._deltas = tuple(self._deltas), []
        return deltas
