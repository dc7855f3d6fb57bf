"""Changes of single logits: bias, penalties and forbidden tokens, as lists of (row, token, value)."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.sampling.rows import Row

_Part = tuple[int, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class SparseValues:
    """Values at (row, token): rows and tokens int64 [n], values float32 [n]."""

    rows: Tensor
    tokens: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitChanges:
    """What happens to single logits, in this order; None where no row has any.

    Attributes:
        bias: added; a token may come twice.
        repetition: divides a positive logit, multiplies a negative one; a token may come twice with the same value.
        generated: subtracted by presence and frequency penalty, for the tokens generated before the window.
        recent: subtracted instead, for the tokens that come again or first among the row's own drafts.
        forbidden: never drawn; the values mean nothing.
    """

    bias: SparseValues | None
    repetition: SparseValues | None
    generated: SparseValues | None
    recent: SparseValues | None
    forbidden: SparseValues | None


def changes(rows: Sequence[Row], *, vocabulary: int, device: torch.device | str) -> LogitChanges:
    """Collects the changes of all rows.

    Raises:
        ValueError: a token outside the vocabulary.
    """
    counted = _Counted(vocabulary)
    bias: list[_Part] = []
    repetition: list[_Part] = []
    generated: list[_Part] = []
    recent: list[_Part] = []
    forbidden: list[_Part] = []
    for number, row in enumerate(rows):
        rules = row.rules
        if rules.logit_bias:
            biased, values = zip(*rules.logit_bias, strict=True)
            bias.append((number, _ids(biased, vocabulary), torch.tensor(values, dtype=torch.float32)))
        if row.forbidden:
            forbidden.append(_same(number, _ids(row.forbidden, vocabulary), 0.0))
        if rules.repetition_penalty != 1:
            known = (counted.tokens(row.generated), _ids(row.recent, vocabulary), row.prompt_tokens)
            parts = [_same(number, part.cpu(), rules.repetition_penalty) for part in known if part is not None]
            repetition += [part for part in parts if part[1].numel()]
        if (rules.presence_penalty or rules.frequency_penalty) and row.generated:
            generated.append((number, counted.tokens(row.generated), counted.subtractions(row)))
        if (rules.presence_penalty or rules.frequency_penalty) and row.recent:
            recent.append((number, *counted.recent(row)))
    return LogitChanges(
        bias=_join(bias, device),
        repetition=_join(repetition, device),
        generated=_join(generated, device),
        recent=_join(recent, device),
        forbidden=_join(forbidden, device),
    )


def apply_changes(logits: Tensor, wanted: LogitChanges) -> Tensor:
    """A changed copy of float32 [rows, vocabulary]."""
    logits = logits.clone()
    if (part := wanted.bias) is not None:
        logits.index_put_((part.rows, part.tokens), part.values, accumulate=True)
    if (part := wanted.repetition) is not None:
        old = logits[part.rows, part.tokens]
        logits.index_put_((part.rows, part.tokens), torch.where(old > 0, old / part.values, old * part.values))
    # Read before any is subtracted: a drafted token must get the very bits it gets once it is no longer a draft.
    before = None if wanted.recent is None else logits[wanted.recent.rows, wanted.recent.tokens]
    if (part := wanted.generated) is not None:
        logits.index_put_((part.rows, part.tokens), logits[part.rows, part.tokens] - part.values)
    if (part := wanted.recent) is not None and before is not None:
        logits.index_put_((part.rows, part.tokens), before - part.values)
    if (part := wanted.forbidden) is not None:
        logits[part.rows, part.tokens] = -torch.inf
    return logits


class _Counted:
    """Reads each request's counts once, however many rows of the window share them."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._read: dict[int, tuple[dict[int, int], Tensor]] = {}
        self._subtracted: dict[tuple[int, int], Tensor] = {}

    def tokens(self, generated: Collection[tuple[int, int]]) -> Tensor:
        return self._counts(generated)[1]

    def subtractions(self, row: Row) -> Tensor:
        """What presence and frequency take from each token of row.generated, float32 [n]."""
        key = (id(row.generated), id(row.rules))
        if key not in self._subtracted:
            self._subtracted[key] = _subtraction(row, self._counts(row.generated)[0].values())
        return self._subtracted[key]

    def recent(self, row: Row) -> tuple[Tensor, Tensor]:
        """The distinct tokens of row.recent, and what presence and frequency take for all their occurrences."""
        before = self._counts(row.generated)[0]
        counts = {token: before.get(token, 0) for token in row.recent}
        for token in row.recent:
            counts[token] += 1
        return _ids(counts, self._vocabulary), _subtraction(row, counts.values())

    def _counts(self, generated: Collection[tuple[int, int]]) -> tuple[dict[int, int], Tensor]:
        # The rows keep the object alive, so its id is not given to another meanwhile.
        found = self._read.get(id(generated))
        if found is None:
            counts = dict(generated)
            found = counts, _ids(counts, self._vocabulary)
            self._read[id(generated)] = found
        return found


def _subtraction(row: Row, counts: Collection[int]) -> Tensor:
    numbers = _whole_numbers(counts).to(torch.float64)
    return (numbers * row.rules.frequency_penalty + row.rules.presence_penalty).to(torch.float32)


def _same(number: int, tokens: Tensor, value: float) -> _Part:
    return number, tokens, torch.full((len(tokens),), value, dtype=torch.float32)


def _ids(tokens: Collection[int], vocabulary: int) -> Tensor:
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        found = min(tokens) if min(tokens) < 0 else max(tokens)
        raise ValueError(f"token {found} to bias, penalise or forbid is outside the vocabulary of {vocabulary}")
    return _whole_numbers(tokens)


def _whole_numbers(values: Iterable[int]) -> Tensor:
    # An array is read by torch at once, a list number by number.
    numbers = array("q", values)
    return torch.frombuffer(numbers, dtype=torch.int64) if numbers else torch.empty(0, dtype=torch.int64)


def _join(parts: list[_Part], device: torch.device | str) -> SparseValues | None:
    if not parts:
        return None
    numbers, tokens, values = zip(*parts, strict=True)
    lengths = torch.tensor([len(part) for part in tokens])
    rows = torch.tensor(numbers).repeat_interleave(lengths)
    return SparseValues(rows.to(device), torch.cat(tokens).to(device), torch.cat(values).to(device))
