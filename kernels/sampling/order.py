"""The largest logits of each row in one total order: by value, equal values by the lower id."""

from __future__ import annotations

from torch import Tensor

# Columns are compared first in piles of this height; only the piles with the largest tops are looked into.
_PILE = 32


def largest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first `count` of each row, sorted: values [rows, count] and ids int64 [rows, count].

    torch leaves open which of equal values a selection returns; here it is always the lower id, so that a row's
    candidates depend neither on the device nor on how many its company asks for.
    """
    vocabulary = logits.shape[1]
    # One more than asked shows whether the last place is disputed.
    fetched = count + 1
    if 2 * fetched >= vocabulary:
        return _sorted(logits, count)
    values, ids = _select(logits, fetched)
    equal = values[:, 1:] == values[:, :-1]
    if equal.any():
        if equal[:, -1].any():
            return _sorted(logits, count)
        ids, by_id = ids.sort(dim=1)
        values, by_value = values.gather(1, by_id).sort(dim=1, descending=True, stable=True)
        ids = ids.gather(1, by_value)
    return values[:, :count], ids[:, :count]


def _sorted(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    values, ids = logits.sort(dim=1, descending=True, stable=True)
    return values[:, :count], ids[:, :count]


def _select(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """topk, by way of the piles where that reads less: the `count` largest lie in the piles with the largest tops."""
    rows, vocabulary = logits.shape
    piles = vocabulary // _PILE
    if vocabulary % _PILE or piles < 4 * count:
        return logits.topk(count, dim=1)
    stacked = logits.reshape(rows, _PILE, piles)
    chosen = stacked.amax(1).topk(count, dim=1, sorted=False).indices
    index = chosen.unsqueeze(1).expand(rows, _PILE, count)
    values, places = stacked.gather(2, index).view(rows, -1).topk(count, dim=1)
    ids = chosen.gather(1, places % count) + places // count * piles
    return values, ids
