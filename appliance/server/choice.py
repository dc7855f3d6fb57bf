"""One choice of an answer: the engine's events in, text in deltas and the numbers for usage out."""

from __future__ import annotations

from appliance.engine.handle import (
    Finished,
    FinishReason,
    GenerationRequest,
    PromptScored,
    TokenLogprob,
    Tokens,
    Usage,
)
from appliance.errors import ApplianceError, EngineFault, RequestError
from appliance.text.stream import Delta, DeltaKind, OutputParser

# OpenAI has no word for "cut off by the server": a drained answer is cut short like one that ran out of tokens.
REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.CANCELLED: "length"}


class GenerationError(ApplianceError):
    """One request failed inside the engine; the others go on."""

    default_code = "generation_failed"


def failure(event: Finished) -> ApplianceError:
    """The error of a request that ended with one. What a fault says goes to the log and status, not to clients."""
    if event.fatal:
        return EngineFault("the engine stopped after a fault; it restarts by itself")
    if event.error_code is not None and event.error_code.startswith("invalid"):
        return RequestError(event.error or "the request was refused", code=event.error_code)
    return GenerationError(event.error or "the request failed", code=event.error_code)


class Choice:
    """State of one choice. `index` is the one the client sees."""

    def __init__(
        self, index: int, request: GenerationRequest, parser: OutputParser, *, echo: str | None = None
    ) -> None:
        self.index = index
        self.request = request
        self.parser = parser
        self.echo = echo
        self.prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
        self.finish_reason: str | None = None
        self.usage = Usage(prompt_tokens=len(request.prompt_ids), completion_tokens=0)
        self.text_offset = 0
        self.has_tokens = False
        self._logprobs: list[TokenLogprob] = []

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.finish_reason is not None

    @property
    def reasoning_tokens(self) -> int:
        """Completion tokens that were thinking."""
        return self.parser.reasoning_tokens

    def take(self, event: Tokens | PromptScored | Finished) -> tuple[Delta, ...]:
        """Deltas of an event; raises the error of a request that failed."""
        if self.ended:
            return ()
        if isinstance(event, Tokens):
            self.has_tokens = True
            if event.logprobs is not None and not self.parser.stopped:
                self._logprobs.extend(event.logprobs)
            return self.parser.feed(event.ids)
        if isinstance(event, PromptScored):
            self.prompt_logprobs = event.logprobs
            return ()
        return self._end(event)

    def logprobs_of(self, deltas: tuple[Delta, ...]) -> list[TokenLogprob]:
        """Log-probabilities of the tokens that the content among these deltas came from."""
        shown = (delta for delta in deltas if delta.kind is DeltaKind.CONTENT)
        return [self._logprobs[at] for delta in shown for at in delta.tokens if at < len(self._logprobs)]

    def _end(self, event: Finished) -> tuple[Delta, ...]:
        if event.reason is FinishReason.ERROR and not self.parser.stopped:
            raise failure(event)
        deltas = self.parser.finish()
        completion = event.usage.completion_tokens
        reason = REASONS.get(event.reason, "stop")
        if self.parser.stopped:
            completion, reason = self.parser.kept_tokens, "stop"
        self.usage = Usage(
            prompt_tokens=len(self.request.prompt_ids),
            completion_tokens=completion,
            cached_tokens=event.usage.cached_tokens,
        )
        self.finish_reason = self.parser.finish_reason(reason)
        return deltas
