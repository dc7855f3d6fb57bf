"""The model file's chat template: a checked prompt in, token ids out.

Special ids come from the template's own text only: guard.py keeps client text plain. renderer.py bounds what it takes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from appliance.errors import ApplianceError, ModelFileError, RequestError
from appliance.text.chat import ChatPrompt, JsonValue, Message, RenderedPrompt, Role, Thinking
from appliance.text.guard import Guard
from appliance.text.renderer import Renderer, RenderFailed, RenderLimits
from appliance.text.template_trial import TRIALS, Trial
from appliance.text.tokenizer import Tokenizer, without_lone_surrogates

if TYPE_CHECKING:
    from appliance.gguf.metadata import Metadata

KEY: Final = "tokenizer.chat_template"
_MAX_SOURCE_CHARS: Final = 256 * 1024


class ChatTemplate:
    """Renders prompts. Blocking (milliseconds; at most the deadline): call it from a thread. It is thread-safe.

    Attributes:
        supports_tools: the trial render showed the tools and the calls.
        supports_late_system: a system turn after other turns is shown where it stands; without it such turns are moved
            to the end of the first system turn, in order, separated by blank lines.
        thinks_by_default: the prompt leaves the thinking open when no switch is given.
    """

    supports_tools: bool
    supports_late_system: bool
    thinks_by_default: bool

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        where: str = "chat template",
        variables: dict[str, JsonValue] | None = None,
        limits: RenderLimits | None = None,
    ) -> None:
        """Compiles and test-renders the template.

        Args:
            where: file or key for messages.
            variables: constants for the template (bos_token, eos_token).

        Raises:
            ModelFileError: the template is broken, hostile or does not render a plain chat.
        """
        if len(source) > _MAX_SOURCE_CHARS:
            raise ModelFileError(f"{where} has {len(source)} characters; at most {_MAX_SOURCE_CHARS} are allowed")
        self._tokenizer = tokenizer
        self._constants = dict(variables or {})
        self._renderer = Renderer(source, limits=limits or RenderLimits())
        self._open_id = tokenizer.special_id("<think>")
        self._close_id = tokenizer.special_id("</think>")
        self.supports_tools = self.supports_late_system = True
        try:
            found = {trial.name: self._try(trial, where) for trial in TRIALS}
        except BaseException:
            self.close()
            raise
        plain = found["plain"]
        self.thinks_by_default = plain is not None and plain.thinking_open
        self.supports_tools = found["tools"] is not None
        self.supports_late_system = found["late system"] is not None

    @classmethod
    def from_metadata(cls, metadata: Metadata, tokenizer: Tokenizer) -> ChatTemplate:
        """The file's template. Its variants for other uses are never used, but a hostile one refuses the file too.

        Raises:
            ModelFileError: no template, or see the constructor.
        """
        if KEY not in metadata:
            raise ModelFileError(f"{metadata.where}: metadata key {KEY} is absent; use a file of a chat model")
        variables: dict[str, JsonValue] = {}
        tokens = metadata.strings("tokenizer.ggml.tokens")
        for name in ("bos", "eos"):
            token_id = metadata.int_(f"tokenizer.ggml.{name}_token_id", None)
            if token_id is not None and 0 <= token_id < len(tokens):
                variables[f"{name}_token"] = tokens[token_id]
        for key in metadata:
            if key.startswith(KEY + ".") and not metadata.is_array(key):
                _refuse_hostile(metadata.str_(key), tokenizer, where=f"{metadata.where}: {key}")
        return cls(metadata.str_(KEY), tokenizer, where=f"{metadata.where}: {KEY}", variables=variables)

    def render(self, prompt: ChatPrompt) -> RenderedPrompt:
        """The prompt's ids, generation prompt included.

        Raises:
            RequestError: the template refuses the conversation, or it is too large to render.
        """
        if prompt.tools and not self.supports_tools:
            raise RequestError(
                "tools cannot be used: the model's chat template does not show them",
                code="unsupported_parameter",
                param="tools",
            )
        try:
            return self._render(prompt)
        except RenderFailed as error:
            if error.kind == "lost":
                raise ApplianceError(f"the chat template could not be rendered: {error.message}") from error
            raise RequestError(
                f"messages cannot be rendered by the model's chat template: {error.message:.500}", param="messages"
            ) from error

    def close(self) -> None:
        """Ends the rendering process; safe to repeat."""
        self._renderer.close()

    def _render(self, prompt: ChatPrompt) -> RenderedPrompt:
        guard = Guard(self._tokenizer.special_texts)
        marked = without_lone_surrogates(self._renderer.render(self._variables(prompt, guard)))
        ids: list[int] = []
        for piece, special_id in self._tokenizer.split_special(marked):
            ids += self._tokenizer.encode(guard.clean(piece)) if special_id is None else (special_id,)
        return RenderedPrompt(ids=tuple(ids), text=guard.clean(marked), thinking_open=self._ends_thinking(ids))

    def _ends_thinking(self, ids: list[int]) -> bool:
        for token_id in reversed(ids):
            if token_id in (self._open_id, self._close_id):
                return token_id == self._open_id
        return False

    def _variables(self, prompt: ChatPrompt, guard: Guard) -> dict[str, JsonValue]:
        messages = prompt.messages if self.supports_late_system else _system_first(prompt.messages)
        variables: dict[str, JsonValue] = {name: guard.json(value) for name, value in prompt.kwargs.items()}
        variables.update(self._constants)
        variables["messages"] = [_message(message, guard) for message in messages]
        variables["tools"] = [guard.json(dict(tool.definition)) for tool in prompt.tools] or None
        variables["add_generation_prompt"] = True
        variables.update(_switches(prompt.thinking))
        return variables

    def _try(self, trial: Trial, where: str) -> RenderedPrompt | None:
        """The trial's rendering, None where an optional ability is missing."""
        try:
            rendered = self._render(trial.prompt)
        except RenderFailed as error:
            if trial.required or error.kind not in ("refused", "template"):
                raise ModelFileError(
                    f"{where} failed its test render ({trial.name}): {error.message:.300}",
                    hint="use a file with the model's own chat template",
                ) from error
            return None
        missing = [text for text in trial.shows if text not in rendered.text]
        if missing and trial.required:
            raise ModelFileError(f"{where} does not show the user's message {missing[0]!r} in its test render")
        return None if missing else rendered


def _refuse_hostile(source: str, tokenizer: Tokenizer, *, where: str) -> None:
    """Test-renders a template that is not going to be used."""
    try:
        ChatTemplate(source, tokenizer, where=where).close()
    except ModelFileError as error:
        cause = error.__cause__
        if not isinstance(cause, RenderFailed) or cause.kind in ("security", "limit", "lost"):
            raise


def _system_first(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    systems = [m for m in messages if m.role is Role.SYSTEM]
    if not systems or systems == [messages[0]]:
        return messages
    joined = replace(systems[0], content="\n\n".join(m.content for m in systems if m.content))
    return (joined, *(m for m in messages if m.role is not Role.SYSTEM))


def _switches(thinking: Thinking) -> dict[str, JsonValue]:
    switches: dict[str, JsonValue] = {"enable_thinking": thinking.enabled, "reasoning_effort": thinking.effort}
    return {name: value for name, value in switches.items() if value is not None}


def _message(message: Message, guard: Guard) -> JsonValue:
    """The turn as templates know it. Members without a value are left out, so `is defined` works."""
    entry: dict[str, JsonValue] = {"role": message.role.value, "content": guard.text(message.content)}
    if message.reasoning is not None:
        entry["reasoning_content"] = guard.text(message.reasoning)
    if message.name is not None:
        entry["name"] = guard.text(message.name)
    if message.tool_call_id is not None:
        entry["tool_call_id"] = guard.text(message.tool_call_id)
    if message.tool_calls:
        entry["tool_calls"] = [
            {
                "id": call.id if call.id is None else guard.text(call.id),
                "type": "function",
                "function": {"name": guard.text(call.name), "arguments": guard.json(dict(call.arguments))},
            }
            for call in message.tool_calls
        ]
    return entry
