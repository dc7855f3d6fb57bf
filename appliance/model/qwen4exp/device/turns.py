"""Between the engine's words and the launcher's: the plan of a span, and what became of the spans of a window."""

from __future__ import annotations

from dataclasses import replace

from appliance.model.interface import Stepped, Ticket
from appliance.model.qwen4exp.device.prompt_turn import ChunkTail
from appliance.model.qwen4exp.device.results import Found
from appliance.model.window import Span
from kernels.rows import SpanPlan


def plan_of(span: Span, next_token: int | None) -> SpanPlan:
    """`next_token` where nothing is drawn after the span."""
    if not span.tokens:
        return SpanPlan(slot=span.slot, rows=span.rows)
    return SpanPlan(
        slot=span.slot,
        rows=len(span.tokens),
        tokens=span.tokens,
        start=span.start,
        certain=len(span.tokens) - span.draft_count,
        next_token=next_token,
    )


def stepped_of(ticket: Ticket, found: Found, *, drafting: bool, tail: ChunkTail | None) -> tuple[Stepped, ...]:
    """What became of each span.

    Args:
        ticket: of the window.
        found: what its last stage sent back.
        drafting: whether drafts were grown.
        tail: the window that a prompt chunk ended with; `found` is of that.
    """
    if tail is not None:
        (last,) = stepped_of(replace(ticket, window=tail.window), found, drafting=drafting, tail=None)
        return (replace(last, kept=tail.before + last.kept),)
    results: list[Stepped] = []
    first = 0
    for number, (span, ask) in enumerate(zip(ticket.window.spans, ticket.asks, strict=True)):
        count = found.rows[number]
        stop = first + count
        certain = len(span.tokens) - span.draft_count if span.tokens else 1
        drawn = range(0) if ask.next_token is not None else range(first + certain - 1, stop)
        first = stop
        drafts = min(found.draft_counts[span.slot], ask.draft_max) if drafting else 0
        results.append(
            Stepped(
                slot=span.slot,
                tokens=tuple(found.ids[row] for row in drawn),
                finite=tuple(not found.bad[row] for row in drawn),
                kept=found.kept[number],
                drafts=tuple(found.drafts[span.slot][:drafts]),
                probabilities=tuple(found.probabilities[span.slot][:drafts]),
            )
        )
    return tuple(results)
