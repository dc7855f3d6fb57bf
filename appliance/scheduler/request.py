"""What a client asks of the engine and what the engine answers; torch-free and frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a row's token is drawn. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One sequence to generate. `n` choices are n requests.

    Attributes:
        id: unique; every event carries it.
        prompt_ids: at least one token id.
        max_tokens: tokens to generate at most, the stop token included; 0 only scores the prompt.
        min_tokens: stop tokens cannot be drawn before this many.
        stop_token_ids: end of turn; empty when end-of-turn is ignored (ignore_eos).
        top_logprobs: None for no log-probabilities, else how many alternatives beside the chosen token.
        prompt_logprobs: the same for every token of the prompt.
        client: name of the API key, for status; never its secret.
    """

    id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    client: str | None = None


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token and of the likeliest alternatives, from the unmodified distribution."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one sequence. completion_tokens counts the stop token."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    drafts_offered: int = 0
    drafts_accepted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScored:
    """Log-probabilities of the prompt's tokens; the first has none."""

    request_id: str
    logprobs: tuple[TokenLogprob | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens of one window, in order. A stop token is not among them."""

    request_id: str
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last event of every request, whatever happened.

    Attributes:
        error: a sentence, only with reason ERROR.
        fatal: with ERROR: the whole engine is lost (503), not this request alone.
    """

    request_id: str
    reason: FinishReason
    usage: Usage
    error: str | None = None
    error_code: str | None = None
    fatal: bool = False


Event = PromptScored | Tokens | Finished
