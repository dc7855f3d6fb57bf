"""Wire structs of the OpenAI routes: what a body may hold, of which type and in which range.

Messages, tools and the thinking switches are checked by `appliance.text.read`, which knows what a template needs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

STOP_STRINGS = 4
TOP_LOGPROBS = 20
LEGACY_LOGPROBS = 5
LOGIT_BIASES = 1024
MAX_TOKENS = 2**31 - 1
SEED_LOW, SEED_HIGH = -(2**63), 2**63 - 1

Unit = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
StopString = Annotated[str, Meta(min_length=1, max_length=512)]
StopStrings = Annotated[list[StopString], Meta(max_length=STOP_STRINGS)]


class StreamOptions(Struct, forbid_unknown_fields=True):
    """What a stream carries beside the text."""

    include_usage: bool | None = None
    include_obfuscation: Literal["off"] | bool | None = None


class TypeOnly(Struct):
    """An object of which the type decides whether it is accepted."""

    type: str


class SharedBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of both routes. JSON null equals absent everywhere."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    seed: Annotated[int, Meta(ge=SEED_LOW, le=SEED_HIGH)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Unit | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOKENS)] | None = None
    min_p: Unit | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=LOGIT_BIASES)] | None = None
    stop: StopString | StopStrings | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    # Without effect here, accepted and listed in the documentation:
    user: str | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: bool | None = None


class ChatBody(SharedBody, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Any], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=TOP_LOGPROBS)] | None = None
    tools: list[Any] | None = None
    tool_choice: str | TypeOnly | None = None
    response_format: TypeOnly | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    # Without effect here:
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None
    prediction: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None


class CompletionBody(SharedBody, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    max_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=LEGACY_LOGPROBS)] | None = None
    echo: bool | None = None
    suffix: Literal[""] | None = None
    best_of: Literal[1] | None = None


class PromptDetails(Struct):
    """Part of Usage."""

    cached_tokens: int


class CompletionDetails(Struct):
    """Part of Usage."""

    reasoning_tokens: int


class UsageBody(Struct):
    """Tokens of the whole answer; a prompt with several choices counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
