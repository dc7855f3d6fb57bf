"""What each row of a window asks of the sampler."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How the rows of one request are drawn; made once per request.

    Attributes:
        temperature: 0 is greedy (ties: the lower id).
        top_k: 0 is off.
        top_p: 1 is off; at 0 the likeliest token is still kept.
        min_p: 0 is off.
        presence_penalty, frequency_penalty: subtracted for generated tokens: once, and per occurrence.
        repetition_penalty: divides positive and multiplies negative logits of prompt and generated tokens; 1 is off.
        logit_bias: (token, added) pairs.
        seed: any integer; taken modulo 2^64.

    Raises:
        ValueError: a number outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        ranges = (
            ("temperature", self.temperature, 0.0, math.inf),
            ("top_k", self.top_k, 0, math.inf),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repetition_penalty", self.repetition_penalty, math.ulp(0.0), math.inf),
        )
        for name, value, low, high in ranges:
            if not (low <= value <= high) or math.isinf(value):
                raise ValueError(f"{name} must be a finite number from {low:g} to {high:g}, found {value}")
        finite = (self.presence_penalty, self.frequency_penalty, *(value for _, value in self.logit_bias))
        if not all(map(math.isfinite, finite)):
            raise ValueError(f"penalties and logit_bias must be finite, found {finite}")

    @property
    def uses_generated(self) -> bool:
        """Whether `Row.generated` matters."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    @property
    def uses_prompt(self) -> bool:
        """Whether `Row.prompt_tokens` matters."""
        return self.repetition_penalty != 1


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a window.

    Attributes:
        rules: the request's.
        position: position in the conversation that the drawn token would take.
        generated: (token, count) of what the request generated so far, each token once; ignored unless
            rules.uses_generated. Rows of one request should share one object: it is then read once.
        recent: tokens generated after those, one by one: the drafts before this row.
        prompt_tokens: distinct tokens of the prompt, int64 [n], made once; ignored unless rules.uses_prompt.
        forbidden: tokens that cannot be drawn: stop tokens before min_tokens.
    """

    rules: Rules
    position: int
    generated: Collection[tuple[int, int]] = ()
    recent: Sequence[int] = ()
    prompt_tokens: Tensor | None = None
    forbidden: Collection[int] = ()
