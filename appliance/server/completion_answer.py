"""The completions route's answers: plain text, with the prompt before it when it is to be echoed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from appliance.errors import ApplianceError
from appliance.server.choice import Choice
from appliance.server.logprobs import LegacyLogprobs, joined, legacy_logprobs
from appliance.server.writer import AnswerHead, ChunkFrame, encode, usage_of
from appliance.text.stream import Delta


class CompletionWriter:
    """Writes one completions answer."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._frame = ChunkFrame(head, "text_completion")

    def opening(self, choices: Sequence[Choice]) -> bytes:
        """The echoed prompts, unless they wait for their log-probabilities."""
        if self._head.logprobs:
            return b""
        return b"".join(self._event(choice, choice.echo) for choice in choices if choice.echo)

    def prompt(self, choice: Choice) -> bytes:
        """The echoed prompt with its log-probabilities."""
        if choice.echo is None:
            return b""
        return self._event(choice, choice.echo, encode(self._prompt_logprobs(choice)))

    def deltas(self, choice: Choice, deltas: tuple[Delta, ...]) -> bytes:
        """One event."""
        text = "".join(delta.text for delta in deltas)
        logprobs = self._logprobs(choice, deltas) if self._head.logprobs else None
        if not text and not (logprobs and logprobs.tokens):
            return b""
        return self._event(choice, text, encode(logprobs))

    def ending(self, choice: Choice) -> bytes:
        """Empty text with the finish reason."""
        return self._event(choice, "", finish=encode(choice.finish_reason))

    def closing(self, choices: Sequence[Choice]) -> bytes:
        """Usage and end."""
        return self._frame.closing(choices)

    def failure(self, error: ApplianceError, choices: Sequence[Choice]) -> bytes:
        """Ends what is open."""
        open_choices = [self._choice(choice, "", b"null", b'"error"') for choice in choices if not choice.ended]
        return self._frame.failure(error, open_choices)

    def whole(self, choices: Sequence[Choice], deltas: Sequence[Sequence[Delta]]) -> bytes:
        """The answer as one object."""
        return encode(
            {
                "id": self._head.id,
                "object": "text_completion",
                "created": self._frame.created,
                "model": self._head.model,
                "choices": [self._text(choice, tuple(own)) for choice, own in zip(choices, deltas, strict=True)],
                "usage": usage_of(choices, choices_per_prompt=self._head.choices_per_prompt),
            }
        )

    def _text(self, choice: Choice, deltas: tuple[Delta, ...]) -> dict[str, Any]:
        logprobs = None
        if self._head.logprobs:
            parts = [] if choice.echo is None else [self._prompt_logprobs(choice)]
            logprobs = joined([*parts, self._logprobs(choice, deltas)])
        return {
            "index": choice.index,
            "text": (choice.echo or "") + "".join(delta.text for delta in deltas),
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
        }

    def _prompt_logprobs(self, choice: Choice) -> LegacyLogprobs:
        ids = choice.request.prompt_ids
        shape = legacy_logprobs(self._head.tokenizer, ids, choice.prompt_logprobs or (None,) * len(ids), offset=0)
        choice.text_offset = len(choice.echo or "")
        return shape

    def _logprobs(self, choice: Choice, deltas: tuple[Delta, ...]) -> LegacyLogprobs:
        entries = choice.logprobs_of(deltas)
        ids = [entry.token_id for entry in entries]
        shape = legacy_logprobs(self._head.tokenizer, ids, entries, offset=choice.text_offset)
        choice.text_offset += sum(len(text) for text in shape.tokens)
        return shape

    def _event(self, choice: Choice, text: str | None, logprobs: bytes = b"null", finish: bytes = b"null") -> bytes:
        return self._frame.event(self._choice(choice, text or "", logprobs, finish))

    @staticmethod
    def _choice(choice: Choice, text: str, logprobs: bytes, finish: bytes) -> bytes:
        parts = (choice.index, encode(text), logprobs, finish)
        return b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}' % parts
