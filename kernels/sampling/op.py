"""Draws one token per row, batched: few large operations over rows that are computed alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.sampling.noise import gumbel
from kernels.sampling.order import largest
from kernels.sampling.params import RowGroup, RowParams
from kernels.sampling.sparse import apply_changes

# A nucleus is looked for among this many tokens first, then among eight times as many, at last among all.
_NUCLEUS_FIRST = 128
_NUCLEUS_GROWTH = 8
_FREE_SLICE_VALUES = 1 << 22
# Keeps a float32 temperature above zero; far below it only the likeliest tokens have any mass.
_COLDEST = 1e-30


@dataclass(frozen=True, slots=True)
class Choice:
    """What was drawn.

    Attributes:
        ids: int64 [rows].
        probabilities: float32 [rows], of each id in the distribution it was drawn from; meaningless where bad.
        bad: bool [rows], rows with a NaN or infinite logit or with no token left; their ids are valid but mean nothing.
    """

    ids: Tensor
    probabilities: Tensor
    bad: Tensor


@dataclass(frozen=True, slots=True)
class _Drawn:
    ids: Tensor
    probabilities: Tensor


def choose(logits: Tensor, params: RowParams, *, greedy_confidence: bool = False) -> Choice:
    """Draws a token for each row.

    Order, as in vLLM and llama.cpp: logit_bias, repetition, frequency and presence penalty, forbidden tokens,
    temperature, top_k, top_p (of the mass that top_k left), min_p (against the likeliest token), then the draw:
    argmax of scaled logit + Gumbel noise of (seed, position, token). The same row gives the same token alone, in any
    company, on CPU and CUDA; two similar distributions at one (seed, position) mostly give the same token.

    Args:
        logits: float32 [rows, vocabulary]; not changed.
        params: from `build`, on the same device.
        greedy_confidence: give greedy rows the softmax probability of their token at temperature 1 instead of 1.

    Raises:
        ValueError: a shape or dtype that does not fit.
    """
    if logits.dtype != torch.float32 or logits.shape != (params.count, params.vocabulary):
        raise ValueError(
            f"logits to draw from are float32 [{params.count}, {params.vocabulary}], "
            f"found {logits.dtype} {list(logits.shape)}"
        )
    # A sum is finite only if all its terms are, and costs less than looking at each; x - x is 0 only for a finite x.
    summed = logits.sum(1)
    bad = (summed - summed) != 0
    if params.changes is not None:
        logits = apply_changes(logits, params.changes)
        bad |= logits.amax(1) == -torch.inf
    if params.all_greedy:
        ids = logits.argmax(1)
        return Choice(
            ids, _confidence(logits, ids) if greedy_confidence else torch.ones_like(bad, dtype=torch.float32), bad
        )
    return _mixed(logits, params, bad, greedy_confidence=greedy_confidence)


def _mixed(logits: Tensor, params: RowParams, bad: Tensor, *, greedy_confidence: bool) -> Choice:
    drawn: list[tuple[RowGroup, _Drawn]] = []
    for group, draw in (
        (params.selected, _draw_selected),
        (params.nucleus, _draw_nucleus),
        (params.ranked, _draw_ranked),
        (params.free, _draw_free),
    ):
        if group is None:
            continue
        own = logits if group.rows is None else logits.index_select(0, group.rows)
        found = draw(own, group)
        if group.rows is None:
            return Choice(found.ids, found.probabilities.to(torch.float32), bad)
        drawn.append((group, found))
    ids = logits.argmax(1)
    probabilities = _confidence(logits, ids) if greedy_confidence else torch.ones_like(bad, dtype=torch.float32)
    for group, found in drawn:
        assert group.rows is not None
        ids.index_copy_(0, group.rows, found.ids)
        probabilities.index_copy_(0, group.rows, found.probabilities.to(torch.float32))
    return Choice(ids, probabilities, bad)


def _confidence(logits: Tensor, ids: Tensor) -> Tensor:
    return (logits.gather(1, ids[:, None]).squeeze(1) - logits.logsumexp(1)).exp_()


def _draw_selected(logits: Tensor, group: RowGroup) -> _Drawn:
    values, ids = largest(logits, group.largest_top_k)
    return _draw_among(values, ids, group, total=None)


def _draw_ranked(logits: Tensor, group: RowGroup) -> _Drawn:
    values, ids = largest(logits, logits.shape[1])
    return _draw_among(values, ids, group, total=None)


def _draw_nucleus(logits: Tensor, group: RowGroup, count: int = _NUCLEUS_FIRST) -> _Drawn:
    """Looks among the `count` likeliest tokens; rows whose nucleus is wider are looked at again, among more."""
    values, ids = largest(logits, min(count, logits.shape[1]))
    total = None
    if group.has_top_p:
        top = values[:, :1]
        scaled = (logits - top).div_(group.temperature.clamp(min=_COLDEST).to(torch.float32))
        total = scaled.exp_().sum(1, keepdim=True, dtype=torch.float64)
    found = _draw_among(values, ids, group, total=total)
    if count >= logits.shape[1]:
        return found
    weights = ((values.to(torch.float64) - values[:, :1]) / group.temperature).exp_()
    covered = weights[:, -1:] < group.min_p
    if total is not None:
        covered |= weights.sum(1, keepdim=True) >= group.top_p * total
    wider = (~covered).squeeze(1).nonzero().squeeze(1)
    if wider.numel():
        again = _draw_nucleus(logits.index_select(0, wider), group.take(wider), count * _NUCLEUS_GROWTH)
        found.ids.index_copy_(0, wider, again.ids)
        found.probabilities.index_copy_(0, wider, again.probabilities)
    return found


def _draw_among(values: Tensor, ids: Tensor, group: RowGroup, *, total: Tensor | None) -> _Drawn:
    """Filters sorted candidates and draws.

    Args:
        values: float32 [n, c] logits in falling order.
        ids: int64 [n, c].
        group: the rules of the n rows.
        total: float64 [n, 1] mass of the whole row relative to its first candidate; None if top_k bounds it.
    """
    scaled = (values.to(torch.float64) - values[:, :1]).div_(group.temperature)
    rank = torch.arange(values.shape[1], device=values.device)
    scaled.masked_fill_(rank >= group.top_k, -torch.inf)
    weights = scaled.exp()
    kept = weights
    if group.has_top_p:
        summed = weights.cumsum(1)
        mass = summed[:, -1:] if total is None else total
        # The first has no mass before it, so one token is always kept.
        keep = pad(summed[:, :-1], (1, 0)) < group.top_p * mass
        kept = kept * keep
    if group.has_min_p:
        kept = kept * (weights >= group.min_p)
    noisy = gumbel(group.keys, ids).add_(scaled).masked_fill_(kept == 0, -torch.inf)
    place = noisy.argmax(1, keepdim=True)
    probabilities = kept.gather(1, place) / kept.sum(1, keepdim=True)
    return _Drawn(ids.gather(1, place).squeeze(1), probabilities.squeeze(1))


def _draw_free(logits: Tensor, group: RowGroup) -> _Drawn:
    """Rows without filters: noise for the whole vocabulary, a few rows at a time."""
    step = max(1, _FREE_SLICE_VALUES // logits.shape[1])
    tokens = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device).unsqueeze(0)
    parts = []
    for first in range(0, logits.shape[0], step):
        rows = slice(first, first + step)
        own = logits[rows].to(torch.float64)
        scaled = own.sub_(own.amax(1, keepdim=True)).div_(group.temperature[rows])
        place = gumbel(group.keys[rows], tokens).add_(scaled).argmax(1, keepdim=True)
        probabilities = scaled.gather(1, place).exp_() / scaled.exp_().sum(1, keepdim=True)
        parts.append(_Drawn(place.squeeze(1), probabilities.squeeze(1)))
    return _Drawn(torch.cat([part.ids for part in parts]), torch.cat([part.probabilities for part in parts]))
