"""The obvious sampler: one row at a time in plain Python, sharing nothing with the batched one but the definitions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from kernels.sampling.rows import Row

_M32 = (1 << 32) - 1
_M64 = (1 << 64) - 1


def choose_reference(logits: Tensor, rows: Sequence[Row]) -> tuple[list[int], list[float]]:
    """Chosen ids and their probabilities in the filtered distribution (1 for greedy rows), for finite logits."""
    chosen = [_choose_row(values, row) for values, row in zip(logits.tolist(), rows, strict=True)]
    return [token for token, _ in chosen], [probability for _, probability in chosen]


def noise_reference(seed: int, position: int, token: int) -> float:
    """Gumbel noise of a token at a position: SplitMix64 makes two keys, two MurmurHash3 finalisers make 32 bits."""
    key = _splitmix((seed + 0x9E3779B97F4A7C15) & _M64)
    key = _splitmix(key ^ ((position * 0x9E3779B97F4A7C15) & _M64))
    value = _murmur((token * 0x9E3779B1 + (key & _M32)) & _M32)
    value = _murmur(value ^ (key >> 32))
    # The batched form maps signed numbers to the unit interval: the upper half of the unsigned range comes first.
    uniform = (((value + (1 << 31)) & _M32) + 0.5) / 2.0**32
    return -math.log(-math.log(uniform))


def _choose_row(logits: list[float], row: Row) -> tuple[int, float]:
    rules = row.rules
    changed = _penalise(logits, row)
    order = sorted(range(len(changed)), key=lambda token: (-changed[token], token))
    if rules.temperature == 0:
        return order[0], 1.0
    top = changed[order[0]]
    scaled = {token: (changed[token] - top) / rules.temperature for token in order}
    if rules.top_k:
        order = order[: rules.top_k]
    if rules.top_p < 1:
        order = _nucleus(order, scaled, rules.top_p)
    if rules.min_p:
        order = [token for token in order if math.exp(scaled[token]) >= rules.min_p]
    order = [token for token in order if scaled[token] > -math.inf]
    token = max(order, key=lambda token: scaled[token] + noise_reference(rules.seed, row.position, token))
    return token, math.exp(scaled[token]) / math.fsum(math.exp(scaled[kept]) for kept in order)


def _nucleus(order: list[int], scaled: dict[int, float], top_p: float) -> list[int]:
    """The shortest beginning of `order` whose mass reaches top_p; at least one token."""
    total = math.fsum(math.exp(scaled[token]) for token in order)
    kept: list[int] = []
    mass = 0.0
    for token in order:
        if kept and mass >= top_p * total:
            break
        kept.append(token)
        mass += math.exp(scaled[token])
    return kept


def _penalise(logits: list[float], row: Row) -> list[float]:
    rules = row.rules
    changed = list(logits)
    for token, value in rules.logit_bias:
        changed[token] += value
    counts = dict(row.generated)
    for token in row.recent:
        counts[token] = counts.get(token, 0) + 1
    prompt = row.prompt_tokens.tolist() if row.prompt_tokens is not None else []
    for token in {*counts, *prompt}:
        factor = rules.repetition_penalty
        changed[token] = changed[token] / factor if changed[token] > 0 else changed[token] * factor
    for token, count in counts.items():
        changed[token] -= rules.presence_penalty + rules.frequency_penalty * count
    for token in row.forbidden:
        changed[token] = -math.inf
    return changed


def _splitmix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _M64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _M64
    return value ^ (value >> 31)


def _murmur(value: int) -> int:
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & _M32
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & _M32
    return value ^ (value >> 16)
