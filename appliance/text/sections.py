"""Cuts an answer into thinking, content and calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Final

from appliance.text.calls import OPENERS, SIGNS, NotYet, ParsedCall, find_opener, parse_call
from appliance.text.chat import Tool
from appliance.text.runs import Run, held_suffix

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"
_QUOTES: Final = "`\"'"
_NOTHING: Final = Run()
# Below this, held text is looked at again with every token; above, only near a tag, or a long argument would cost
# its length with each of its tokens.
_EAGER_CHARS: Final = 4096
_RECENT_CHARS: Final = 64
_SIGNS: Final = (*SIGNS, _CLOSE)


class PieceKind(Enum):
    """What a piece is."""

    CONTENT = "content"
    REASONING = "reasoning"
    THOUGHT_OVER = "thought over"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class Piece:
    """A cut."""

    kind: PieceKind
    run: Run = _NOTHING
    call: ParsedCall | None = None


class _State(Enum):
    START = "nothing but white space yet"
    THINKING = "in the thinking"
    CONTENT = "behind it, or never in it"


class Sections:
    """Text in, pieces out; what may still turn out to be a tag or a call waits.

    Attributes:
        close_positions: output positions whose token is the closing tag itself; the owner of this adds them.
        thinking: first output position of the thinking (None: none) and the one behind its last (None: still open).
    """

    def __init__(self, *, tools: Sequence[Tool], thinking_open: bool, plain: bool) -> None:
        self._tools = {} if plain else {tool.name: tool for tool in tools}
        self._state = _State.CONTENT if plain else _State.THINKING if thinking_open else _State.START
        self._buffer = Run()
        self._late: list[Run] = []
        self._recent = ""
        self._line = ""
        self._fenced = False
        self._fresh = True
        self.close_positions: set[int] = set()
        self.thinking: tuple[int | None, int | None] = (0, None) if self._state is _State.THINKING else (None, None)

    @property
    def passes_all(self) -> bool:
        """Whether all that comes is content, to the end: nothing waits, and no tag or call means anything any more."""
        return self._state is _State.CONTENT and not self._tools and not self._buffer and not self._late

    def feed(self, run: Run) -> Iterator[Piece]:
        """Pieces that are certain."""
        self._late.append(run)
        self._recent = self._recent[-_RECENT_CHARS:] + run.text
        if len(self._buffer.text) < _EAGER_CHARS or any(sign in self._recent for sign in _SIGNS):
            self._join()
            yield from self._cut(final=False)

    def finish(self) -> Iterator[Piece]:
        """The rest."""
        self._join()
        yield from self._cut(final=True)

    def _join(self) -> None:
        runs = (self._buffer, *self._late)
        self._late = []
        self._buffer = Run("".join(run.text for run in runs), tuple(chain.from_iterable(run.owners for run in runs)))

    def _cut(self, *, final: bool) -> Iterator[Piece]:
        steps = {_State.START: self._start, _State.THINKING: self._think, _State.CONTENT: self._content}
        while self._buffer:
            before = (self._state, len(self._buffer.text))
            yield from steps[self._state](final)
            if before == (self._state, len(self._buffer.text)):
                return

    def _start(self, final: bool) -> Iterator[Piece]:
        body = self._buffer.without_leading(" \t\r\n")
        if body.text.startswith(_OPEN):
            self.thinking = (body.owners[0], None)
            self._state, self._fresh = _State.THINKING, False
            self._buffer = body.part(len(_OPEN))
        elif final or not _OPEN.startswith(body.text):
            self._state = _State.CONTENT
        yield from ()

    def _think(self, final: bool) -> Iterator[Piece]:
        if self._fresh:
            # The prompt opened the thinking; some models open it again.
            body = self._buffer.without_leading("\r\n")
            if not final and _OPEN.startswith(body.text):
                return
            self._fresh = False
            if body.text.startswith(_OPEN):
                self._buffer = body.part(len(_OPEN))
        text = self._buffer.text
        close = text.find(_CLOSE)
        opener = find_opener(text, self._line, 0) if self._tools else -1
        if opener >= 0 and not 0 <= close < opener:
            yield self._pass(opener, PieceKind.REASONING)
            yield from self._calls_in_thinking(final)
        elif close >= 0:
            yield self._pass(close, PieceKind.REASONING)
            yield from self._at_close()
        else:
            held = 0 if final else held_suffix(text, (_CLOSE, *(OPENERS if self._tools else ())))
            yield self._pass(len(text) - held, PieceKind.REASONING)

    def _at_close(self) -> Iterator[Piece]:
        """The buffer starts with a closing tag."""
        quoted = self._line[-1:] in _QUOTES and self._line.count(self._line[-1:]) % 2 == 1 if self._line else False
        spelled = self._buffer.owners[0] not in self.close_positions
        if quoted or (spelled and self._fenced):
            yield self._pass(len(_CLOSE), PieceKind.REASONING)
            return
        self._close_thinking(self._buffer.owners[len(_CLOSE) - 1] + 1)
        self._buffer = self._buffer.part(len(_CLOSE))
        yield Piece(PieceKind.THOUGHT_OVER)

    def _close_thinking(self, behind: int) -> None:
        self.thinking = (self.thinking[0], behind)
        self._state, self._line = _State.CONTENT, ""

    def _calls_in_thinking(self, final: bool) -> Iterator[Piece]:
        """The buffer starts with an opener: calls to the end of the turn, or thoughts."""
        text = self._buffer.text
        calls: list[ParsedCall] = []
        at = 0
        while True:
            found = parse_call(text, at, self._tools, final=final)
            if not isinstance(found, ParsedCall):
                break
            if _CLOSE in text[at : found.end]:
                # The call was abandoned: what looks like its rest stands behind the thinking.
                found = NotYet.NEVER
                break
            calls.append(found)
            at = found.end + len(text[found.end :]) - len(text[found.end :].lstrip())
            if not text.startswith(OPENERS, at):
                break
        rest = text[at:].removeprefix(_CLOSE).strip() if calls else text
        undecided = found is NotYet.MORE or (calls and any(w.startswith(rest) for w in (_CLOSE, *OPENERS)))
        if isinstance(found, ParsedCall) and final and not rest:
            self._close_thinking(self._buffer.owners[0])
            self._buffer = Run()
            for call in calls:
                yield Piece(PieceKind.CALL, call=call)
        elif final or not undecided or (found is NotYet.MORE and _CLOSE in text[at:]):
            yield self._pass(max(at, 1), PieceKind.REASONING)

    def _content(self, final: bool) -> Iterator[Piece]:
        text = self._buffer.text
        opener = find_opener(text, self._line, 0) if self._tools else -1
        if opener < 0:
            held = held_suffix(text, OPENERS) if self._tools and not final else 0
            yield self._pass(len(text) - held, PieceKind.CONTENT)
            return
        yield self._pass(opener, PieceKind.CONTENT)
        found = parse_call(self._buffer.text, 0, self._tools, final=final)
        if isinstance(found, ParsedCall):
            self._line = ""
            self._buffer = self._buffer.part(found.end)
            yield Piece(PieceKind.CALL, call=found)
        elif found is NotYet.NEVER:
            yield self._pass(1, PieceKind.CONTENT)

    def _pass(self, size: int, kind: PieceKind) -> Piece:
        """The first characters of the buffer as a piece; keeps track of the current line and of code fences."""
        run, self._buffer = self._buffer.part(0, size), self._buffer.part(size)
        *done, self._line = (self._line + run.text).split("\n")
        self._fenced ^= sum(line.lstrip().startswith("```") for line in done) % 2 == 1
        return Piece(kind, run)
