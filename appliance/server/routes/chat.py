"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets

from litestar import post
from litestar.response.base import ASGIResponse

from appliance.server.body import decode, read_body
from appliance.server.chat_answer import ChatWriter
from appliance.server.context import AnyRequest, Context, client_of
from appliance.server.openai import ChatBody
from appliance.server.prepare import PreparedPrompt, Wishes, answer, check_shared, invalid, now, unsupported
from appliance.text.chat import ChatPrompt
from appliance.text.read import read_prompt


@post("/v1/chat/completions")
async def chat(request: AnyRequest) -> ASGIResponse:
    """Answers a chat, streamed or whole."""
    started = now()
    context = Context.of(request)
    context.require_ready()
    raw = await read_body(request, limit_bytes=context.body_limit(), idle_s=context.config.body_idle_s)
    body = await context.in_thread(lambda: decode(raw, ChatBody))
    card = context.require_model(body.model)
    engine = context.backend.engine()
    check_shared(body, prompts=1, engine=engine)
    check_chat(body)
    template = context.backend.text().template

    def render() -> tuple[ChatPrompt, PreparedPrompt]:
        prompt = chat_prompt(body)
        rendered = template.render(prompt)
        return prompt, PreparedPrompt(ids=rendered.ids, thinking_open=rendered.thinking_open)

    prompt, prepared = await context.in_thread(render)
    return answer(
        context,
        body,
        card=card,
        engine=engine,
        prompts=[prepared],
        wishes=wishes_of(body, prompt),
        answer_id=f"chatcmpl-{secrets.token_hex(12)}",
        writer=ChatWriter,
        client=client_of(request),
        started=started,
    )


def check_chat(body: ChatBody) -> None:
    """What is refused although its type is right; raises RequestError naming the field."""
    choice = body.tool_choice
    if choice == "required" or not (choice is None or isinstance(choice, str)):
        raise unsupported("tool_choice", "a call cannot be enforced in this version; use auto or none")
    if choice not in (None, "auto", "none"):
        raise invalid("tool_choice", f"is {str(choice)[:40]!r}; it must be auto or none")
    if body.response_format is not None and body.response_format.type != "text":
        raise unsupported("response_format", "only the type text can be guaranteed in this version")
    for index, tool in enumerate(body.tools or ()):
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and function.get("strict"):
            raise unsupported(f"tools[{index}].function.strict", "a schema cannot be enforced in this version")
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs", "is only allowed together with logprobs = true")


def chat_prompt(body: ChatBody) -> ChatPrompt:
    """The conversation as the template gets it; raises RequestError."""
    return read_prompt(
        body.messages,
        tools=None if body.tool_choice == "none" else body.tools,
        reasoning_effort=body.reasoning_effort,
        enable_thinking=body.enable_thinking,
        chat_template_kwargs=body.chat_template_kwargs,
    )


def wishes_of(body: ChatBody, prompt: ChatPrompt) -> Wishes:
    """The newer of the two limits wins; log-probabilities only when asked for."""
    newer = body.max_completion_tokens is not None
    return Wishes(
        max_tokens=body.max_completion_tokens if newer else body.max_tokens,
        max_tokens_name="max_completion_tokens" if newer else "max_tokens",
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        tools=prompt.tools,
    )
