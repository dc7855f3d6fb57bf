"""POST /v1/completions."""

from __future__ import annotations

import secrets

from litestar import post
from litestar.response.base import ASGIResponse

from appliance.server.body import decode, read_body
from appliance.server.completion_answer import CompletionWriter
from appliance.server.context import AnyRequest, Context, client_of
from appliance.server.openai import CompletionBody
from appliance.server.prepare import PreparedPrompt, Wishes, answer, check_shared, invalid, now
from appliance.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16


@post("/v1/completions")
async def completions(request: AnyRequest) -> ASGIResponse:
    """Continues prompts, streamed or whole."""
    started = now()
    context = Context.of(request)
    context.require_ready()
    raw = await read_body(request, limit_bytes=context.body_limit(), idle_s=context.config.body_idle_s)
    body = await context.in_thread(lambda: decode(raw, CompletionBody))
    card = context.require_model(body.model)
    engine = context.backend.engine()
    prompts = prompts_of(body.prompt)
    check_shared(body, prompts=len(prompts), engine=engine)
    if body.max_tokens == 0 and not body.echo:
        raise invalid("max_tokens", "0 is only allowed together with echo = true")
    tokenizer = context.backend.text().tokenizer
    echo = bool(body.echo)
    prepared = await context.in_thread(
        lambda: [prepare(prompt, tokenizer, vocabulary=engine.vocabulary, echo=echo) for prompt in prompts]
    )
    return answer(
        context,
        body,
        card=card,
        engine=engine,
        prompts=prepared,
        wishes=Wishes(
            max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
            top_logprobs=body.logprobs,
            prompt_logprobs=body.logprobs if echo else None,
            plain=True,
        ),
        answer_id=f"cmpl-{secrets.token_hex(12)}",
        writer=CompletionWriter,
        client=client_of(request),
        started=started,
    )


def prompts_of(raw: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The four forms: a string, strings, token ids, lists of token ids; raises RequestError for a mixture."""
    if isinstance(raw, str):
        return [raw]
    ids = [item for item in raw if isinstance(item, int)]
    texts = [item for item in raw if isinstance(item, str)]
    lists = [item for item in raw if isinstance(item, list)]
    if not raw:
        raise invalid("prompt", "is an empty list; it must have at least one prompt or token id")
    if len(ids) == len(raw):
        return [ids]
    if len(texts) == len(raw):
        return list(texts)
    if len(lists) == len(raw):
        return list(lists)
    raise invalid("prompt", "mixes strings, token ids and lists; it must be all of one kind")


def prepare(prompt: str | list[int], tokenizer: Tokenizer, *, vocabulary: int, echo: bool) -> PreparedPrompt:
    """Ids of one prompt. Text never becomes a control token; whoever needs one sends token ids."""
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    if not ids:
        raise invalid("prompt", "is empty; it must have at least one token")
    for token_id in ids:
        if not 0 <= token_id < vocabulary:
            raise invalid("prompt", f"{token_id} is no token id; they are 0 to {vocabulary - 1}")
    text = prompt if isinstance(prompt, str) else tokenizer.decode(prompt)
    return PreparedPrompt(ids=tuple(ids), echo=text if echo else None)
