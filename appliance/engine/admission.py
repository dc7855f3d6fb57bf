"""Judges a request before it is queued, so that a bad one fails alone and at once; torch-free."""

from __future__ import annotations

from appliance.engine.config import EngineConfig
from appliance.errors import ContextLengthError, RequestError
from appliance.scheduler.request import GenerationRequest, SamplingParams

# Changes of a logit beyond this would not stay finite in float32.
_LARGEST = 1e6
_RANGES = (
    ("temperature", 0.0, 1e9),
    ("top_k", 0, 1e9),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -_LARGEST, _LARGEST),
    ("frequency_penalty", -_LARGEST, _LARGEST),
    ("repetition_penalty", 1e-3, 1e3),
)


def check_request(request: GenerationRequest, config: EngineConfig, *, vocabulary: int) -> int:
    """Checks a request.

    Returns:
        Tokens it may generate: max_tokens, or what the context leaves.

    Raises:
        RequestError: an empty prompt, a token id outside the vocabulary, a number outside its range.
        ContextLengthError: the prompt leaves no room for one token.
    """
    _check_prompt(request, vocabulary=vocabulary)
    _check_sampling(request.sampling, vocabulary=vocabulary)
    for name in ("top_logprobs", "prompt_logprobs"):
        count = getattr(request, name)
        if count is not None and count < 0:
            raise RequestError(f"{name} is {count}; it must be 0 or more", param=name)
    if request.max_tokens < 0 or (request.max_tokens == 0 and request.prompt_logprobs is None):
        raise RequestError(
            f"max_tokens is {request.max_tokens}; it must be at least 1, or 0 with "
            "echo and logprobs to score the prompt only",
            param="max_tokens",
        )
    room = config.max_tokens - len(request.prompt_ids)
    if room < min(1, request.max_tokens):
        raise ContextLengthError(
            f"the prompt has {len(request.prompt_ids)} tokens and the context of one conversation is "
            f"{config.max_tokens}; shorten the prompt",
            param="prompt",
        )
    return min(request.max_tokens, room)


def _check_prompt(request: GenerationRequest, *, vocabulary: int) -> None:
    ids = request.prompt_ids
    if not ids:
        raise RequestError("the prompt is empty; give at least one token", param="prompt")
    lowest, highest = min(ids), max(ids)
    if lowest < 0 or highest >= vocabulary:
        raise RequestError(
            f"the prompt contains token id {lowest if lowest < 0 else highest}; ids go from 0 to {vocabulary - 1}",
            param="prompt",
        )


def _check_sampling(sampling: SamplingParams, *, vocabulary: int) -> None:
    for name, low, high in _RANGES:
        value = getattr(sampling, name)
        # Written so that NaN is refused too.
        if not low <= value <= high:
            raise RequestError(f"{name} is {value}; it must be a number from {low:g} to {high:g}", param=name)
    for token_id, bias in sampling.logit_bias:
        if not (0 <= token_id < vocabulary and -_LARGEST <= bias <= _LARGEST):
            raise RequestError(
                f"logit_bias has {bias} for token id {token_id}; ids go from 0 to {vocabulary - 1}, "
                f"a bias from {-_LARGEST:g} to {_LARGEST:g}",
                param="logit_bias",
            )
