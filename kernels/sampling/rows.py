"""What each row of a window asks of the sampler, and its form as a few tensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.sampling.noise import noise_key

# Above this a partial selection is no longer cheaper than sorting the whole row.
TOP_K_SELECTED = 1024
_OFF_TOP_P = 2.0


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
        generated: (token, count) of what the request generated so far; ignored unless rules.uses_generated.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseValues:
    """Values at (row, token): rows and tokens int64 [n], values float32 [n]."""

    rows: Tensor
    tokens: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Sampled rows that are computed alike.

    Attributes:
        rows: their numbers, int64 [n]; None for all rows of the window, in order.
        temperature, top_p, min_p: float64 [n, 1]; top_p above 1 is off.
        top_k: int64 [n, 1]; at least the vocabulary is off.
        keys: int32 [n, 2], see `noise_key`.
        largest_top_k: the largest of top_k, known without asking the device.
        has_top_p, has_min_p: whether any row uses it.
    """

    rows: Tensor | None
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    keys: Tensor
    largest_top_k: int
    has_top_p: bool
    has_min_p: bool

    def take(self, index: Tensor) -> RowGroup:
        """The group of the rows with these indices within this group."""
        return RowGroup(
            rows=index if self.rows is None else self.rows[index],
            temperature=self.temperature[index],
            top_k=self.top_k[index],
            top_p=self.top_p[index],
            min_p=self.min_p[index],
            keys=self.keys[index],
            largest_top_k=self.largest_top_k,
            has_top_p=self.has_top_p,
            has_min_p=self.has_min_p,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowParams:
    """The rules of a window's rows as tensors. Rows in no group are greedy.

    Attributes:
        count: rows.
        vocabulary: tokens.
        bias, repetition, subtraction: sparse changes of logits, in this order; None where no row has any.
        forbidden: int64 [2, n] of rows and tokens, or None.
        selected: rows with a small top_k.
        nucleus: rows with top_p or min_p and no top_k.
        ranked: rows with a large top_k.
        free: rows without filters.
    """

    count: int
    vocabulary: int
    bias: SparseValues | None = None
    repetition: SparseValues | None = None
    subtraction: SparseValues | None = None
    forbidden: Tensor | None = None
    selected: RowGroup | None = None
    nucleus: RowGroup | None = None
    ranked: RowGroup | None = None
    free: RowGroup | None = None

    @property
    def all_greedy(self) -> bool:
        """Whether no row is drawn at random."""
        return not (self.selected or self.nucleus or self.ranked or self.free)

    @property
    def changes_logits(self) -> bool:
        """Whether any row has a bias, a penalty or a forbidden token."""
        parts = (self.bias, self.repetition, self.subtraction, self.forbidden)
        return any(part is not None for part in parts)


def build(rows: Sequence[Row], *, vocabulary: int, device: torch.device | str = "cpu") -> RowParams:
    """Gathers the rows' rules into as few tensors as possible.

    Args:
        rows: one per row of logits, in order.
        vocabulary: columns of the logits.
        device: where the logits are.

    Raises:
        ValueError: a biased, penalised or forbidden token outside the vocabulary.
    """
    members: dict[str, list[int]] = {"selected": [], "nucleus": [], "ranked": [], "free": []}
    changed = False
    for number, row in enumerate(rows):
        kind = _kind(row.rules, vocabulary)
        if kind is not None:
            members[kind].append(number)
        changed = changed or bool(row.forbidden or row.rules.logit_bias or row.rules.uses_generated)
    groups = {kind: _group(rows, found, vocabulary, device) for kind, found in members.items() if found}
    if not changed:
        return _params(rows, groups, vocabulary)
    forbidden = [(number, token) for number, row in enumerate(rows) for token in row.forbidden]
    bias = [(number, token, value) for number, row in enumerate(rows) for token, value in row.rules.logit_bias]
    return replace(
        _params(rows, groups, vocabulary),
        bias=_sparse(bias, vocabulary, device),
        repetition=_repetition(rows, vocabulary, device),
        subtraction=_sparse(_subtractions(rows), vocabulary, device),
        forbidden=_pairs(forbidden, vocabulary, device),
    )


def _params(rows: Sequence[Row], groups: dict[str, RowGroup], vocabulary: int) -> RowParams:
    return RowParams(
        count=len(rows),
        vocabulary=vocabulary,
        selected=groups.get("selected"),
        nucleus=groups.get("nucleus"),
        ranked=groups.get("ranked"),
        free=groups.get("free"),
    )


def _kind(rules: Rules, vocabulary: int) -> str | None:
    """The group of a row, None for greedy. One candidate left is greedy too."""
    if rules.temperature == 0 or rules.top_k == 1 or rules.top_p == 0:
        return None
    if 0 < rules.top_k < vocabulary:
        return "selected" if rules.top_k <= TOP_K_SELECTED else "ranked"
    return "nucleus" if rules.top_p < 1 or rules.min_p > 0 else "free"


def _group(rows: Sequence[Row], members: list[int], vocabulary: int, device: torch.device | str) -> RowGroup:
    rules = [rows[number].rules for number in members]
    numbers = torch.tensor(
        [
            (rule.temperature, rule.top_p if rule.top_p < 1 else _OFF_TOP_P, rule.min_p, rule.top_k or vocabulary)
            for rule in rules
        ],
        dtype=torch.float64,
    ).to(device)
    keys = [noise_key(rows[number].rules.seed, rows[number].position) for number in members]
    whole = len(members) == len(rows)
    return RowGroup(
        rows=None if whole else torch.tensor(members, dtype=torch.int64).to(device),
        temperature=numbers[:, 0:1],
        top_p=numbers[:, 1:2],
        min_p=numbers[:, 2:3],
        top_k=numbers[:, 3:4].to(torch.int64),
        keys=torch.tensor(keys, dtype=torch.int32).to(device),
        largest_top_k=min(vocabulary, max(rule.top_k or vocabulary for rule in rules)),
        has_top_p=any(rule.top_p < 1 for rule in rules),
        has_min_p=any(rule.min_p > 0 for rule in rules),
    )


def _subtractions(rows: Sequence[Row]) -> list[tuple[int, int, float]]:
    """(row, token, what presence and frequency take away), each token of a row once."""
    found: list[tuple[int, int, float]] = []
    for number, row in enumerate(rows):
        presence, frequency = row.rules.presence_penalty, row.rules.frequency_penalty
        if not (presence or frequency):
            continue
        counts = dict(row.generated)
        for token in row.recent:
            counts[token] = counts.get(token, 0) + 1
        found += [(number, token, presence + frequency * count) for token, count in counts.items() if count > 0]
    return found


def _repetition(rows: Sequence[Row], vocabulary: int, device: torch.device | str) -> SparseValues | None:
    """The repetition penalty at each token of prompt and answer. A token may come twice, with the same value."""
    listed: list[tuple[int, int, float]] = []
    parts: list[SparseValues] = []
    for number, row in enumerate(rows):
        penalty = row.rules.repetition_penalty
        if penalty == 1:
            continue
        listed += [(number, token, penalty) for token, count in row.generated if count > 0]
        listed += [(number, token, penalty) for token in row.recent]
        if row.prompt_tokens is not None and row.prompt_tokens.numel():
            tokens = row.prompt_tokens.to(device)
            same = torch.full_like(tokens, number)
            parts.append(
                SparseValues(rows=same, tokens=tokens, values=torch.full_like(same, penalty, dtype=torch.float32))
            )
    own = _sparse(listed, vocabulary, device)
    parts += [own] if own else []
    if not parts:
        return None
    return SparseValues(
        rows=torch.cat([part.rows for part in parts]),
        tokens=torch.cat([part.tokens for part in parts]),
        values=torch.cat([part.values for part in parts]),
    )


def _sparse(entries: list[tuple[int, int, float]], vocabulary: int, device: torch.device | str) -> SparseValues | None:
    if not entries:
        return None
    rows, tokens, values = zip(*entries, strict=True)
    places = _pairs(list(zip(rows, tokens, strict=True)), vocabulary, device)
    assert places is not None
    return SparseValues(rows=places[0], tokens=places[1], values=torch.tensor(values, dtype=torch.float32).to(device))


def _pairs(entries: list[tuple[int, int]], vocabulary: int, device: torch.device | str) -> Tensor | None:
    if not entries:
        return None
    outside = [token for _, token in entries if not 0 <= token < vocabulary]
    if outside:
        raise ValueError(f"token {outside[0]} to bias, penalise or forbid is outside the vocabulary of {vocabulary}")
    return torch.tensor(entries, dtype=torch.int64).t().contiguous().to(device)
