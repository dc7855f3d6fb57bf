"""Owns the speeds of a plan: windows and their groups over all cards; pure numbers in, estimates out.

A window yields A = (1 - p^(k+1)) / (1 - p) tokens for each user. Real engines reach a share of the limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from appliance.groups import Pipeline, best
from appliance.window_cost import (
    LEAST_WINDOW_S,
    Lane,
    Load,
    Span,
    Way,
    handoffs_s,
    hit_share,
    link_gbps,
    stage_s,
    tokens_a_window,
)

USERS: Final = (1, 2, 4, 8)
# What published engines reach of the byte limit: 54 to 66% with one user.
DECODE_SHARE: Final = (0.50, 0.70)
# And of the prompt limit: 20 to 56%.
PROMPT_SHARE: Final = (0.20, 0.45)
# Prompts of this length say how quickly they are read: their chunks follow each other through the stages.
PROMPT_TOKENS: Final = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Estimates.

    Attributes:
        hits: share of routed experts found in VRAM.
        users: tokens a second in all, at each of USERS.
        prompt: prompt tokens a second.
        drafts: best draft length at each of USERS.
    """

    hits: Span
    users: tuple[Span, ...]
    prompt: Span
    drafts: tuple[int, ...]


def limit(load: Load, lanes: Sequence[Lane], way: Way, *, users: int, drafts: int, hits: Sequence[float]) -> float:
    """Tokens a second that bytes and launches allow, by the schedule of groups through the cards."""
    return users * tokens_a_window(drafts) / turn_s(load, lanes, way, users=users, drafts=drafts, hits=hits)


def turn_s(load: Load, lanes: Sequence[Lane], way: Way, *, users: int, drafts: int, hits: Sequence[float]) -> float:
    """Seconds between two windows of one conversation, with the number of groups that suits."""
    if len(lanes) == 1:
        return stage_s(load, lanes[0], way, users=users, drafts=drafts, hits=hits[0], last=True)
    pipeline = pipeline_of(load, lanes, way, users=users, drafts=drafts, hits=hits)
    return users / best(pipeline, users, most_groups=way.groups).conversation_windows_per_s


def pipeline_of(
    load: Load, lanes: Sequence[Lane], way: Way, *, users: int, drafts: int, hits: Sequence[float]
) -> Pipeline:
    """The cards as stages; what each further conversation takes is the slope up to all of `users`."""

    def seconds(count: int) -> list[float]:
        last = len(lanes) - 1
        return [
            stage_s(load, lane, way, users=count, drafts=drafts, hits=share, last=number == last)
            for number, (lane, share) in enumerate(zip(lanes, hits, strict=True))
        ]

    one, all_of_them = seconds(1), seconds(users)
    more = [(b - a) / (users - 1) if users > 1 else 0.0 for a, b in zip(one, all_of_them, strict=True)]
    return Pipeline(
        window_s=tuple(one),
        more_s=tuple(more),
        handoff_s=handoffs_s(load, lanes, rows=math.ceil(users / len(lanes)) * (1 + drafts)),
    )


def estimate(load: Load, lanes: Sequence[Lane], way: Way) -> Speed:
    """Speeds of a plan.

    Args:
        load: the model.
        lanes: cards in stage order, at least one; their shares sum to 1.
        way: how windows are made.
    """
    spans = [hit_share(lane.cache_bytes / max(load.experts_bytes * lane.share, 1.0)) for lane in lanes]
    hits = Span(
        sum(lane.share * span.least for lane, span in zip(lanes, spans, strict=True)),
        sum(lane.share * span.most for lane, span in zip(lanes, spans, strict=True)),
    )
    users, drafts = [], []
    for count in USERS:
        low, best = _best(load, lanes, way, count, [span.least for span in spans])
        high, _ = _best(load, lanes, way, count, [span.most for span in spans])
        users.append(Span(DECODE_SHARE[0] * low, DECODE_SHARE[1] * high))
        drafts.append(best)
    prompt = prompt_limit(load, lanes, way)
    return Speed(
        hits=hits,
        users=tuple(users),
        prompt=Span(PROMPT_SHARE[0] * prompt, PROMPT_SHARE[1] * prompt),
        drafts=tuple(drafts),
    )


def _best(load: Load, lanes: Sequence[Lane], way: Way, users: int, hits: Sequence[float]) -> tuple[float, int]:
    """(rate, drafts) of the draft length that brings most, the shorter of equals."""
    longest = way.draft_max if load.draft and (way.batch_mtp or users == 1) else 0
    rates = [limit(load, lanes, way, users=users, drafts=drafts, hits=hits) for drafts in range(longest + 1)]
    return max(rates), rates.index(max(rates))


def prompt_limit(load: Load, lanes: Sequence[Lane], way: Way) -> float:
    """Prompt tokens a second that products and the link allow: an expert that is not in VRAM comes once a chunk.

    Chunks of a prompt follow each other through the cards, so the slowest card sets the pace after the first.
    """
    chunk, seconds = way.prompt_chunk, []
    touched = 1 - (1 - load.experts_used / load.experts) ** chunk
    for lane in lanes:
        away = touched * max(0.0, load.experts_bytes * lane.share - lane.cache_bytes)
        compute = load.prompt_flop * lane.share * chunk / (lane.tflops * 1e12)
        seconds.append(max(compute, away / (link_gbps(lane, way) * 1e9), LEAST_WINDOW_S * lane.share))
    chunks = max(1, PROMPT_TOKENS // chunk)
    return chunks * chunk / (sum(seconds) + (chunks - 1) * max(seconds))
