"""Log-probabilities of drawn tokens and of prompts, in one computation for a whole window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import torch

from appliance.engine.places import Place
from appliance.scheduler.commit import Drawn
from appliance.scheduler.request import TokenLogprob
from kernels.sampling import log_probabilities

_Wanted = tuple[int, int, int]


def with_logprobs(places: Sequence[Place], drawn: Sequence[Drawn], logits: torch.Tensor) -> list[Drawn]:
    """Adds what the requests asked for to what was drawn.

    Args:
        places: the window's spans.
        drawn: their tokens, in the same order.
        logits: float32 [rows, vocabulary] of the window, unmodified.
    """
    scores = [_score_rows(place) for place in places]
    tokens = [_token_rows(place, result.tokens) for place, result in zip(places, drawn, strict=True)]
    wanted = [row for pair in zip(scores, tokens, strict=True) for rows in pair for row in rows]
    if not wanted:
        return list(drawn)
    found = iter(_compute(wanted, logits))
    results: list[Drawn] = []
    for place, result, scored, chosen in zip(places, drawn, scores, tokens, strict=True):
        own_scores = list(islice(found, len(scored)))
        own_tokens = list(islice(found, len(chosen)))
        finite = all(math.isfinite(score.logprob) for score in own_scores)
        logprobs = None if place.session.request.top_logprobs is None else own_tokens
        results.append(replace(result, logprobs=logprobs, scores=own_scores, scores_finite=finite))
    return results


def _score_rows(place: Place) -> list[_Wanted]:
    """(row of logits, token, alternatives) for the prompt tokens that follow the span's rows."""
    request = place.session.request
    if request.prompt_logprobs is None or place.span.start >= place.session.prompt_tokens:
        return []
    after = request.prompt_ids[place.span.start + 1 : place.span.start + 1 + len(place.span.tokens)]
    return [(place.first + row, token, request.prompt_logprobs) for row, token in enumerate(after)]


def _token_rows(place: Place, tokens: Sequence[int]) -> list[_Wanted]:
    """The same for the drawn tokens."""
    count = place.session.request.top_logprobs
    if count is None:
        return []
    return [(row, token, count) for row, token in zip(place.drawn_rows, tokens, strict=True)]


def _compute(wanted: Sequence[_Wanted], logits: torch.Tensor) -> list[TokenLogprob]:
    rows, tokens, counts = zip(*wanted, strict=True)
    index = torch.tensor(rows, device=logits.device)
    found = log_probabilities(logits[index], torch.tensor(tokens, device=logits.device), top_counts=counts)
    lists = zip(tokens, counts, found.chosen.tolist(), found.top_ids.tolist(), found.top.tolist(), strict=True)
    return [
        TokenLogprob(token, chosen, tuple(zip(ids[:count], tops[:count], strict=True)))
        for token, count, chosen, ids, tops in lists
    ]
