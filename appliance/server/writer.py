"""What both answer shapes have in common: chunks around constant parts encoded once, usage, error and end events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from appliance.errors import ApplianceError
from appliance.server.choice import Choice
from appliance.server.openai import CompletionDetails, PromptDetails, UsageBody
from appliance.server.problems import error_body
from appliance.text.stream import Delta
from appliance.text.tokenizer import Tokenizer

encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What is the same in every chunk of an answer, and what the answer was asked to carry."""

    id: str
    model: str
    tokenizer: Tokenizer
    choices_per_prompt: int = 1
    include_usage: bool = False
    logprobs: bool = False


class AnswerWriter(Protocol):
    """One shape of answer, streamed or whole."""

    def opening(self, choices: Sequence[Choice]) -> bytes:
        """Events before the engine's first."""
        ...

    def prompt(self, choice: Choice) -> bytes:
        """Events when the prompt has been scored."""
        ...

    def deltas(self, choice: Choice, deltas: tuple[Delta, ...]) -> bytes:
        """Events of new text."""
        ...

    def ending(self, choice: Choice) -> bytes:
        """The event with the finish reason."""
        ...

    def closing(self, choices: Sequence[Choice]) -> bytes:
        """Usage, when asked for, and the end."""
        ...

    def failure(self, error: ApplianceError, choices: Sequence[Choice]) -> bytes:
        """An error after the stream began, and the end."""
        ...

    def whole(self, choices: Sequence[Choice], deltas: Sequence[Sequence[Delta]]) -> bytes:
        """The answer without a stream; deltas of each choice."""
        ...


def usage_of(choices: Sequence[Choice], *, choices_per_prompt: int) -> UsageBody:
    """Tokens of the answer."""
    firsts = choices[::choices_per_prompt]
    prompt = sum(choice.usage.prompt_tokens for choice in firsts)
    completion = sum(choice.usage.completion_tokens for choice in choices)
    return UsageBody(
        prompt,
        completion,
        prompt + completion,
        PromptDetails(sum(choice.usage.cached_tokens for choice in firsts)),
        CompletionDetails(sum(choice.reasoning_tokens for choice in choices)),
    )


class ChunkFrame:
    """Wraps choices into server-sent events."""

    def __init__(self, head: AnswerHead, kind: str) -> None:
        self.created = int(time.time())
        fields = {"id": head.id, "object": kind, "created": self.created, "model": head.model}
        self._head = head
        self._start = b"data: " + encode(fields)[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if head.include_usage else b"]}\n\n"

    def event(self, choice: bytes) -> bytes:
        """An event with one encoded choice."""
        return self._start + choice + self._end

    def closing(self, choices: Sequence[Choice]) -> bytes:
        """The usage event, when asked for, and the end mark."""
        if not self._head.include_usage:
            return DONE
        usage = encode(usage_of(choices, choices_per_prompt=self._head.choices_per_prompt))
        return self._start + b'],"usage":' + usage + b"}\n\n" + DONE

    def failure(self, error: ApplianceError, open_choices: Sequence[bytes]) -> bytes:
        """One event that ends the open choices and carries the error, and the end mark."""
        return self._start + b",".join(open_choices) + b'],"error":' + encode(error_body(error).error) + b"}\n\n" + DONE
