"""The model file's chat template: a checked prompt in, token ids out."""

from __future__ import annotations

from appliance.text.chat import ChatPrompt, RenderedPrompt
from appliance.text.tokenizer import Tokenizer


class ChatTemplate:
    """Renders prompts. Blocking (milliseconds; at most the deadline): call it from a thread, it is thread-safe."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """Compiles and test-renders the template.

        Raises:
            ModelFileError: the template is broken, hostile or does not render a plain chat.
        """
        raise NotImplementedError

    def render(self, prompt: ChatPrompt) -> RenderedPrompt:
        """The prompt's ids, generation prompt included.

        Raises:
            RequestError: the template refuses the conversation, or it is too large to render.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Ends the rendering process; safe to repeat."""
