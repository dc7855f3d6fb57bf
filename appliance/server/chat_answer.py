"""The chat route's answers: chunks with deltas, or one message; reasoning apart from content, calls by index."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from appliance.errors import ApplianceError
from appliance.server.choice import Choice
from appliance.server.logprobs import chat_logprobs
from appliance.server.writer import AnswerHead, ChunkFrame, encode, usage_of
from appliance.text.stream import Delta, DeltaKind

_CALL_KINDS = (DeltaKind.TOOL_CALL, DeltaKind.TOOL_ARGUMENTS)
_GROUPS = {DeltaKind.CONTENT: "content", DeltaKind.REASONING: "reasoning", **dict.fromkeys(_CALL_KINDS, "calls")}


class ChatWriter:
    """Writes one chat answer."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._frame = ChunkFrame(head, "chat.completion.chunk")

    def opening(self, choices: Sequence[Choice]) -> bytes:
        """The role comes first and alone."""
        return b"".join(self._event(choice, b'{"role":"assistant","content":""}') for choice in choices)

    def prompt(self, choice: Choice) -> bytes:
        """Chat answers do not echo."""
        return b""

    def deltas(self, choice: Choice, deltas: tuple[Delta, ...]) -> bytes:
        """One event for each run of deltas of one kind; a window nearly always has one."""
        if len(deltas) == 1:
            return self._run(choice, _GROUPS[deltas[0].kind], deltas)
        return b"".join(
            self._run(choice, name, tuple(run)) for name, run in groupby(deltas, key=lambda delta: _GROUPS[delta.kind])
        )

    def _run(self, choice: Choice, name: str, deltas: tuple[Delta, ...]) -> bytes:
        if name == "calls":
            return self._event(choice, encode({"tool_calls": call_deltas(deltas)}))
        text = deltas[0].text if len(deltas) == 1 else "".join(delta.text for delta in deltas)
        if name == "reasoning":
            return self._event(choice, b'{"reasoning_content":' + encode(text) + b"}") if text else b""
        entries = choice.logprobs_of(deltas) if self._head.logprobs else []
        if not text and not entries:
            return b""
        extra = encode(chat_logprobs(self._head.tokenizer, entries)) if self._head.logprobs else b"null"
        return self._event(choice, b'{"content":' + encode(text) + b"}", extra)

    def ending(self, choice: Choice) -> bytes:
        """An empty delta with the finish reason."""
        return self._event(choice, b"{}", finish=encode(choice.finish_reason))

    def closing(self, choices: Sequence[Choice]) -> bytes:
        """Usage and end."""
        return self._frame.closing(choices)

    def failure(self, error: ApplianceError, choices: Sequence[Choice]) -> bytes:
        """Ends what is open."""
        open_choices = [self._choice(choice, b"{}", b"null", b'"error"') for choice in choices if not choice.ended]
        return self._frame.failure(error, open_choices)

    def whole(self, choices: Sequence[Choice], deltas: Sequence[Sequence[Delta]]) -> bytes:
        """The answer as one object."""
        return encode(
            {
                "id": self._head.id,
                "object": "chat.completion",
                "created": self._frame.created,
                "model": self._head.model,
                "choices": [self._message(choice, own) for choice, own in zip(choices, deltas, strict=True)],
                "usage": usage_of(choices, choices_per_prompt=self._head.choices_per_prompt),
            }
        )

    def _message(self, choice: Choice, deltas: Sequence[Delta]) -> dict[str, Any]:
        content = [delta for delta in deltas if delta.kind is DeltaKind.CONTENT]
        reasoning = "".join(delta.text for delta in deltas if delta.kind is DeltaKind.REASONING)
        calls = joined_calls(deltas)
        text = "".join(delta.text for delta in content)
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        entries = choice.logprobs_of(tuple(content)) if self._head.logprobs else []
        return {
            "index": choice.index,
            "message": message,
            "logprobs": chat_logprobs(self._head.tokenizer, entries) if self._head.logprobs else None,
            "finish_reason": choice.finish_reason,
        }

    def _event(self, choice: Choice, delta: bytes, logprobs: bytes = b"null", finish: bytes = b"null") -> bytes:
        return self._frame.event(self._choice(choice, delta, logprobs, finish))

    @staticmethod
    def _choice(choice: Choice, delta: bytes, logprobs: bytes, finish: bytes) -> bytes:
        return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}' % (choice.index, delta, logprobs, finish)


def call_deltas(deltas: Sequence[Delta]) -> list[dict[str, Any]]:
    """Deltas of calls, one entry a call: its name comes with the entry that starts it."""
    entries: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        assert delta.call_index is not None
        entry = entries.setdefault(delta.call_index, {"index": delta.call_index, "function": {"arguments": ""}})
        if delta.kind is DeltaKind.TOOL_CALL:
            entry |= {"id": delta.call_id, "type": "function"}
            entry["function"] = {"name": delta.call_name, "arguments": entry["function"]["arguments"]}
        entry["function"]["arguments"] += delta.text
    return list(entries.values())


def joined_calls(deltas: Sequence[Delta]) -> list[dict[str, Any]]:
    """The calls of a whole answer."""
    calls = call_deltas([delta for delta in deltas if delta.kind in _CALL_KINDS])
    return [{key: value for key, value in call.items() if key != "index"} for call in calls]
