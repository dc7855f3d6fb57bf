"""Owns one plan as a screen shows it: bars, RAM, expected hits and speeds, and what a change of it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.cost import USERS, Span, Speed, Way, estimate
from appliance.errors import DoesNotFitError
from appliance.model.qwen4exp.device_footprint import expert_bytes
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.planning.load import card_speeds, lanes, load_of
from appliance.planning.sketch import Sketch, Wish, sketch
from appliance.rig.cards import Card
from appliance.rig.machine import Machine
from appliance.rig.machine_schema import BenchTable
from appliance.rig.size import GIB, format_size

LIKE_BYTES = GIB // 10
LIKE_SHARE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """A plan.

    Attributes:
        title: what distinguishes it.
        sketch: bytes; None when it cannot fit.
        speed: hits and speeds; None when it cannot fit.
        source: "measured" after `strata bench --record`, else "estimate from measured / advertised / assumed speeds".
        refusal: why it cannot fit, with the numbers; "" when it fits.
    """

    title: str
    sketch: Sketch | None
    speed: Speed | None
    source: str
    refusal: str = ""

    @property
    def fits(self) -> bool:
        """Whether it can be had."""
        return self.sketch is not None


def view(
    machine: Machine,
    spec: ModelSpec,
    cards: Sequence[Card],
    wish: Wish,
    *,
    title: str = "",
    draft_max: int = 4,
    batch_mtp: bool = True,
    bench: BenchTable | None = None,
) -> PlanView:
    """Prices a wish and estimates its speeds; never raises for what does not fit.

    Args:
        machine: with the speeds that were measured.
        spec: of the model, or a catalogue entry's outline.
        cards: in stage order.
        wish: context, conversations and so on.
        title: for lists.
        draft_max, batch_mtp: as in the rig.
        bench: recorded speeds, which replace the estimates; give them for the recorded plan only.
    """
    try:
        found = sketch(machine, spec, cards, wish)
    except DoesNotFitError as error:
        return PlanView(title=title, sketch=None, speed=None, source="", refusal=str(error))
    load = load_of(spec, draft=wish.draft)
    shares = [(bar.layers[1] - bar.layers[0]) / spec.trunk_layers for bar in found.bars]
    # Cards hold experts in a form of their own; shares of a layer's experts are what hits depend on.
    scale = load.experts_bytes / max(sum(_experts(spec, wish)), 1)
    cached = [bar.size("cache") * scale for bar in found.bars]
    way = Way(
        draft_max=draft_max,
        batch_mtp=batch_mtp,
        groups=len(cards),
        prompt_chunk=wish.prompt_chunk,
        ram_gbps=machine.rates.ram_gbps.value,
    )
    speed = estimate(load, lanes(machine, cards, shares=shares, cache_bytes=cached), way)
    order = ("assumed", "advertised", "measured")
    weakest = min((card_speeds(machine, card).source for card in cards), key=order.index)
    source = f"estimate from {weakest} speeds"
    if bench is not None and bench.users_1 is not None:
        speed, source = recorded(speed, bench), "measured"
    return PlanView(title=title, sketch=found, speed=speed, source=source)


def _experts(spec: ModelSpec, wish: Wish) -> tuple[int, ...]:
    found = expert_bytes(spec, draft=wish.draft)
    return tuple(one * found.count for one in found.layers)


def recorded(speed: Speed, bench: BenchTable) -> Speed:
    """The estimates with every number replaced that a benchmark recorded."""
    users = tuple(
        guess if (value := getattr(bench, f"users_{count}")) is None else Span(value, value)
        for count, guess in zip(USERS, speed.users, strict=True)
    )
    return Speed(
        hits=speed.hits if bench.hit_share is None else Span(bench.hit_share, bench.hit_share),
        users=users,
        prompt=speed.prompt if bench.prompt is None else Span(bench.prompt, bench.prompt),
        drafts=speed.drafts,
    )


def difference(before: PlanView, after: PlanView) -> str:
    """What a change costs or brings, in one line: "1.1 GiB less cache, hits 93% to 90%, one user 4% slower"."""
    if after.sketch is None or after.speed is None:
        return f"cannot fit: {after.refusal}"
    if before.sketch is None or before.speed is None:
        return "fits now"
    parts = []
    cache = after.sketch.cache_bytes - before.sketch.cache_bytes
    if abs(cache) >= LIKE_BYTES:
        parts.append(f"{_tenths(abs(cache))} {'less' if cache < 0 else 'more'} cache")
    ram = after.sketch.ram_bytes - before.sketch.ram_bytes
    if abs(ram) >= LIKE_BYTES:
        parts.append(f"{_tenths(abs(ram))} {'less' if ram < 0 else 'more'} RAM")
    hits = (before.speed.hits.middle, after.speed.hits.middle)
    if abs(hits[1] - hits[0]) >= LIKE_SHARE:
        parts.append(f"hits {hits[0]:.0%} to {hits[1]:.0%}")
    for words, old, new in (
        ("one user", before.speed.users[0], after.speed.users[0]),
        ("four users", before.speed.users[2], after.speed.users[2]),
        ("prompts", before.speed.prompt, after.speed.prompt),
    ):
        change = new.middle / max(old.middle, 1e-9) - 1
        if abs(change) >= LIKE_SHARE:
            parts.append(f"{words} {abs(change):.0%} {'slower' if change < 0 else 'faster'}")
    return ", ".join(parts) or "no difference worth naming"


def _tenths(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB // 10 else format_size(size_bytes)
