"""From a checked body to engine requests: defaults, clamps, limits and the rules between fields."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from appliance.engine.handle import EngineHandle, GenerationRequest, SamplingParams
from appliance.errors import ContextLengthError, RequestError
from appliance.server.backend import ModelCard
from appliance.server.choice import Choice
from appliance.server.context import Context
from appliance.server.openai import SharedBody
from appliance.server.run import Run
from appliance.server.sse import Answer, Job
from appliance.server.writer import AnswerHead, AnswerWriter
from appliance.text.chat import Tool
from appliance.text.stream import OutputParser
from appliance.text.tokenizer import Tokenizer

SEED_BITS = 63
SMALLEST_TOP_P = 1e-6
# One spelling an id, so that none is named twice, and no more digits than `int` takes.
TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPrompt:
    """A prompt in ids, and how its answer is read."""

    ids: tuple[int, ...]
    thinking_open: bool = False
    echo: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a route asks beside the shared fields.

    Attributes:
        max_tokens: None generates to the end of the context.
        max_tokens_name: the field that max_tokens came from.
        tools: what the answer may call.
        plain: no tags and calls in the answer.
    """

    max_tokens: int | None
    max_tokens_name: str = "max_tokens"
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    tools: tuple[Tool, ...] = ()
    plain: bool = False


def invalid(param: str, sentence: str) -> RequestError:
    """A refusal that names the field."""
    return RequestError(f"{param}: {sentence}", code="invalid_value", param=param)


def unsupported(param: str, sentence: str) -> RequestError:
    """A refusal of what this version cannot do."""
    return RequestError(f"{param}: {sentence}", code="unsupported_parameter", param=param)


def check_shared(body: SharedBody, *, prompts: int, engine: EngineHandle) -> None:
    """Rules between fields, and fields that only have one allowed value.

    Raises:
        RequestError: names the field.
    """
    if body.store:
        raise unsupported("store", "answers are not kept here; send false or leave it out")
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options", "is only allowed together with stream = true")
    most = engine.slots
    if (body.n or 1) > most:
        raise invalid("n", f"this server decodes {most} conversations together, so n is at most {most}")
    room = most + engine.status().queue.limit
    if prompts * (body.n or 1) > room:
        raise invalid(
            "prompt", f"{prompts} prompts with n = {body.n or 1} are more than the {room} requests that fit here"
        )


def sampling_of(body: SharedBody, *, defaults: SamplingParams, vocabulary: int) -> SamplingParams:
    """Request values win, also an explicit 0; then the rig's, then the model's.

    Documented clamps: top_k -1, 0 and whatever reaches the vocabulary are off; top_p 0 keeps the best token only.
    """
    top_k = defaults.top_k if body.top_k is None else body.top_k
    top_p = defaults.top_p if body.top_p is None else body.top_p
    seed = secrets.randbits(SEED_BITS) if body.seed is None else body.seed % 2**SEED_BITS
    return SamplingParams(
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        top_k=0 if top_k >= vocabulary else max(0, top_k),
        top_p=max(SMALLEST_TOP_P, top_p),
        min_p=defaults.min_p if body.min_p is None else body.min_p,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=biases_of(body.logit_bias, vocabulary=vocabulary),
        seed=seed,
    )


def biases_of(raw: dict[str, float] | None, *, vocabulary: int) -> tuple[tuple[int, float], ...]:
    """Token ids are decimal strings in JSON."""
    biases = []
    for name, value in (raw or {}).items():
        if TOKEN_ID.fullmatch(name) is None or int(name) >= vocabulary:
            raise invalid("logit_bias", f"{name[:40]!r} is no token id; they are 0 to {vocabulary - 1}")
        biases.append((int(name), value))
    return tuple(biases)


def room_for(ids: Sequence[int], wishes: Wishes, *, context_tokens: int) -> int:
    """Tokens to generate.

    Raises:
        ContextLengthError: prompt and answer do not fit; the sentence has both numbers.
    """
    room = context_tokens - len(ids)
    wanted = wishes.max_tokens
    if room < (1 if wanted is None else min(wanted, 1)):
        raise ContextLengthError(
            f"the prompt has {len(ids)} tokens and the context of this server has {context_tokens}; shorten the prompt",
            param="messages" if not wishes.plain else "prompt",
        )
    if wanted is not None and wanted > room:
        raise ContextLengthError(
            f"the prompt has {len(ids)} tokens and {wishes.max_tokens_name} asks for {wanted} more, but the context of "
            f"this server has {context_tokens}; ask for at most {room} or shorten the prompt",
            param=wishes.max_tokens_name,
        )
    return room if wanted is None else wanted


def answer(
    context: Context,
    body: SharedBody,
    *,
    card: ModelCard,
    engine: EngineHandle,
    prompts: Sequence[PreparedPrompt],
    wishes: Wishes,
    answer_id: str,
    writer: Callable[[AnswerHead], AnswerWriter],
    client: str | None,
    started: float,
) -> Answer:
    """The response, not yet submitted to the engine."""
    tokenizer = context.backend.text().tokenizer
    n = body.n or 1
    sampling = sampling_of(body, defaults=context.backend.sampling_defaults(), vocabulary=engine.vocabulary)
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    choices: list[Choice] = []
    for prompt in prompts:
        max_tokens = room_for(prompt.ids, wishes, context_tokens=engine.max_tokens)
        if (body.min_tokens or 0) > max_tokens:
            raise invalid(
                "min_tokens", f"is {body.min_tokens}, more than the {max_tokens} tokens that may be generated"
            )
        for number in range(n):
            request = GenerationRequest(
                id=f"{answer_id}-{len(choices)}",
                prompt_ids=prompt.ids,
                max_tokens=max_tokens,
                sampling=replace(sampling, seed=(sampling.seed + number) % 2**SEED_BITS),
                min_tokens=body.min_tokens or 0,
                stop_token_ids=frozenset() if body.ignore_eos else card.stop_token_ids,
                top_logprobs=wishes.top_logprobs,
                prompt_logprobs=wishes.prompt_logprobs,
                client=client,
            )
            choices.append(Choice(len(choices), request, parser_of(tokenizer, prompt, wishes, stops), echo=prompt.echo))
    head = AnswerHead(
        id=answer_id,
        model=card.id,
        tokenizer=tokenizer,
        choices_per_prompt=n,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        logprobs=wishes.top_logprobs is not None,
    )
    job = Job(
        run=run_of(context, engine, choices),
        choices=tuple(choices),
        writer=writer(head),
        metrics=context.metrics,
        model=card.id,
        started=started,
        keep_alive_s=context.config.keep_alive_s,
    )
    return Answer(job, stream=bool(body.stream))


def parser_of(tokenizer: Tokenizer, prompt: PreparedPrompt, wishes: Wishes, stops: tuple[str, ...]) -> OutputParser:
    """A fresh parser for one choice."""
    return OutputParser(
        tokenizer, stops=stops, thinking_open=prompt.thinking_open, tools=wishes.tools, plain=wishes.plain
    )


def run_of(context: Context, engine: EngineHandle, choices: Sequence[Choice]) -> Run:
    """The engine side; a longer prompt may be silent for longer."""
    config = context.config
    longest = max(len(choice.request.prompt_ids) for choice in choices)
    return Run(
        engine,
        [choice.request for choice in choices],
        watchdog_s=config.watchdog_s + config.watchdog_token_s * longest,
        on_silence=context.backend.report_silence,
    )


def now() -> float:
    """The clock of all durations."""
    return time.monotonic()
