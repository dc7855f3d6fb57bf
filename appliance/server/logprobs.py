"""Log-probabilities in the shapes of the chat and the completions route; always finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from appliance.engine.handle import TokenLogprob
from appliance.text.tokenizer import Tokenizer

LOWEST = -9999.0


class TopLogprob(Struct):
    """An alternative to the chosen token."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(Struct):
    """One token of a chat answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    """`logprobs` of a chat choice."""

    content: list[ChatLogprob]
    refusal: None = None


class LegacyLogprobs(Struct):
    """`logprobs` of a completions choice; the first token of an echoed prompt has null."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def finite(value: float) -> float:
    """JSON has no infinity."""
    return value if math.isfinite(value) and value > LOWEST else LOWEST


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """What a token shows as; bytes that are no character of their own become U+FFFD."""
    return tokenizer.token_bytes(token_id).decode("utf-8", errors="replace")


def chat_logprobs(tokenizer: Tokenizer, entries: Iterable[TokenLogprob]) -> ChatLogprobs:
    """The chat shape."""
    content = []
    for entry in entries:
        top = [_top(tokenizer, token_id, logprob) for token_id, logprob in entry.top]
        chosen = _top(tokenizer, entry.token_id, entry.logprob)
        content.append(ChatLogprob(chosen.token, chosen.logprob, chosen.bytes, top))
    return ChatLogprobs(content)


def _top(tokenizer: Tokenizer, token_id: int, logprob: float) -> TopLogprob:
    return TopLogprob(token_text(tokenizer, token_id), finite(logprob), list(tokenizer.token_bytes(token_id)))


def legacy_logprobs(
    tokenizer: Tokenizer, ids: Sequence[int], entries: Sequence[TokenLogprob | None], *, offset: int
) -> LegacyLogprobs:
    """The completions shape: ids [n] name the tokens, entries [n] may lack the first; offset in characters."""
    shape = LegacyLogprobs([], [], [], [])
    for token_id, entry in zip(ids, entries, strict=True):
        text = token_text(tokenizer, token_id)
        shape.tokens.append(text)
        shape.text_offset.append(offset)
        offset += len(text)
        if entry is None:
            shape.token_logprobs.append(None)
            shape.top_logprobs.append(None)
            continue
        shape.token_logprobs.append(finite(entry.logprob))
        top = {token_text(tokenizer, other): finite(logprob) for other, logprob in entry.top}
        shape.top_logprobs.append({text: finite(entry.logprob)} | top)
    return shape


def joined(parts: Sequence[LegacyLogprobs]) -> LegacyLogprobs:
    """The shape of several pieces in order."""
    whole = LegacyLogprobs([], [], [], [])
    for part in parts:
        whole.tokens += part.tokens
        whole.token_logprobs += part.token_logprobs
        whole.top_logprobs += part.top_logprobs
        whole.text_offset += part.text_offset
    return whole
