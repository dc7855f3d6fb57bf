"""The rules of all slots on the device, where captured windows read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.sampling.noise import first_mix
from kernels.sampling.rows import Rules

STOPS = 16
"""Tokens that can be forbidden before a position."""
MOST_TOP_K = 64
"""Candidates that the drawing kernels sort."""
GREEDY, TOP, FREE, WIDE = range(4)
_OFF_TOP_P = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRules:
    """Rules, counts and biases; the dummy slot last. About nine bytes a slot and token.

    Attributes:
        numbers: float64 [slots + 1, 8]: temperature, top_p (above 1: off), min_p, presence, frequency, repetition.
        wholes: int32 [slots + 1, 8]: kind of draw, candidates, changes (1 bias, 2 frequency or presence,
            4 repetition), stop tokens, first position where those may be drawn.
        seeds: int64 [slots + 1], mixed once.
        stops: int32 [slots + 1, STOPS].
        bias: float32 [slots + 1, vocabulary].
        generated: int32 [slots + 1, vocabulary]: how often each token was generated.
        prompt: uint8 [slots + 1, vocabulary]: 1 for tokens of the prompt.
    """

    numbers: Tensor
    wholes: Tensor
    seeds: Tensor
    stops: Tensor
    bias: Tensor
    generated: Tensor
    prompt: Tensor

    @classmethod
    def empty(cls, *, slots: int, vocabulary: int, device: torch.device | str) -> SlotRules:
        """Greedy rules for every slot."""

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros((slots + 1, *shape), dtype=dtype, device=device)

        return cls(
            numbers=zeros(8, dtype=torch.float64),
            wholes=zeros(8, dtype=torch.int32),
            seeds=zeros(dtype=torch.int64),
            stops=zeros(STOPS, dtype=torch.int32),
            bias=zeros(vocabulary, dtype=torch.float32),
            generated=zeros(vocabulary, dtype=torch.int32),
            prompt=zeros(vocabulary, dtype=torch.uint8),
        )

    @property
    def vocabulary(self) -> int:
        """Tokens."""
        return self.bias.shape[1]

    def open(
        self,
        slot: int,
        rules: Rules,
        *,
        stops: Sequence[int] = (),
        first_stop: int = 0,
        prompt_tokens: Iterable[int] = (),
        generated: Iterable[tuple[int, int]] = (),
    ) -> int:
        """Gives a slot its rules; between windows, on the stream that runs them.

        Args:
            slot: which.
            rules: of the request.
            stops: tokens that cannot be drawn at positions before `first_stop`.
            first_stop: 0 for no such position.
            prompt_tokens: of the prompt; read only if the rules use them.
            generated: (token, count) of what was generated before.

        Returns:
            The kind of draw; WIDE needs `draw(..., wide=True)` in windows with this slot.

        Raises:
            ValueError: a token outside the vocabulary, or too many stop tokens.
        """
        prompt = sorted(set(prompt_tokens)) if rules.uses_prompt else []
        counts = list(generated) if rules.uses_generated else []
        tokens = [*stops, *prompt, *(token for token, _ in (*rules.logit_bias, *counts))]
        if tokens and not 0 <= min(tokens) <= max(tokens) < self.vocabulary:
            raise ValueError(f"tokens {min(tokens)} to {max(tokens)} in rules; the vocabulary has {self.vocabulary}")
        if len(stops) > STOPS:
            raise ValueError(f"{len(stops)} stop tokens to forbid; at most {STOPS} are allowed")
        kind = kind_of(rules, self.vocabulary)
        flags = bool(rules.logit_bias) + 4 * rules.uses_prompt
        flags += 2 * bool(rules.presence_penalty or rules.frequency_penalty)
        top_p = rules.top_p if rules.top_p < 1 else _OFF_TOP_P
        penalties = (rules.presence_penalty, rules.frequency_penalty, rules.repetition_penalty)
        top_k = min(rules.top_k or self.vocabulary, self.vocabulary)
        self._put(self.numbers[slot, :6], (rules.temperature, top_p, rules.min_p, *penalties))
        self._put(self.wholes[slot, :5], (kind, top_k, flags, len(stops), first_stop if stops else 0))
        self._put(self.seeds[slot : slot + 1], (first_mix(rules.seed),))
        self._put(self.stops[slot, : len(stops)], stops)
        for table in (self.bias, self.generated, self.prompt):
            table[slot].zero_()
        if rules.logit_bias:
            places, values = zip(*rules.logit_bias, strict=True)
            self.bias[slot].index_put_((self._places(places),), self._new(values, torch.float32), accumulate=True)
        if counts:
            places, numbers = zip(*counts, strict=True)
            self.generated[slot].index_put_((self._places(places),), self._new(numbers, torch.int32))
        if prompt:
            self.prompt[slot].index_fill_(0, self._places(prompt), 1)
        return kind

    def _new(self, values: Sequence[float], dtype: torch.dtype) -> Tensor:
        return self._held(values, dtype).to(self.bias.device, non_blocking=True)

    def _places(self, tokens: Sequence[int]) -> Tensor:
        return self._new(tokens, torch.int64)

    def _put(self, place: Tensor, values: Sequence[float]) -> None:
        place.copy_(self._held(values, place.dtype), non_blocking=True)

    def _held(self, values: Sequence[float], dtype: torch.dtype) -> Tensor:
        """Where a copy need not be waited for: windows of others are on their way when a request comes."""
        return torch.tensor(values, dtype=dtype, pin_memory=self.bias.is_cuda)


def kind_of(rules: Rules, vocabulary: int) -> int:
    """How rows with these rules are drawn: the likeliest; among few sorted candidates; freely; or among very many."""
    if rules.temperature == 0 or rules.top_k == 1 or rules.top_p == 0:
        return GREEDY
    if 0 < rules.top_k < vocabulary:
        return TOP if rules.top_k <= MOST_TOP_K else WIDE
    return WIDE if rules.top_p < 1 or rules.min_p > 0 else FREE
