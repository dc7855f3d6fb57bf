"""Owns one plan as a screen shows it: bars, RAM, expected hits and speeds, and what a change of it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.cost import USERS, Speed
from appliance.errors import DoesNotFitError
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.placed import Placement
from appliance.placed_speed import StageTime, speed_of, stage_times
from appliance.placement import place
from appliance.planning.bars import Bar, Part, bars_of, ram_parts
from appliance.planning.wish import Wish
from appliance.rig.cards import Card
from appliance.rig.judge import Device
from appliance.rig.machine import Machine
from appliance.rig.machine_schema import BenchTable
from appliance.rig.size import GIB, format_size
from appliance.speeds import card_speeds
from appliance.window_cost import Span

LIKE_BYTES = GIB // 10
LIKE_SHARE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """A plan.

    Attributes:
        title: what distinguishes it.
        placement: bytes; None when it cannot fit.
        speed: hits and speeds; None when it cannot fit.
        times: of each card in a window of the expected company.
        source: "measured" after `strata bench --record`, else "estimate from measured / advertised / assumed speeds".
        refusal: why it cannot fit, with the numbers; "" when it fits.
    """

    title: str
    placement: Placement | None
    speed: Speed | None
    times: tuple[StageTime, ...] = ()
    source: str = ""
    refusal: str = ""

    @property
    def fits(self) -> bool:
        """Whether it can be had."""
        return self.placement is not None

    @property
    def bars(self) -> tuple[Bar, ...]:
        """The cards' memory, in stage order."""
        return () if self.placement is None else bars_of(self.placement)

    @property
    def ram(self) -> tuple[Part, ...]:
        """Parts in RAM."""
        return () if self.placement is None else ram_parts(self.placement)

    @property
    def cards(self) -> tuple[Card, ...]:
        """Those that compute, in stage order."""
        return () if self.placement is None else tuple(stage.card for stage in self.placement.stages)

    @property
    def cache_bytes(self) -> int:
        """Experts in VRAM, all cards."""
        return 0 if self.placement is None else sum(stage.expert_bytes for stage in self.placement.stages)


def view(
    machine: Machine, spec: ModelSpec, cards: Sequence[Card], wish: Wish, *, title: str = "", choose: bool = False
) -> PlanView:
    """Prices a wish and estimates its speeds; never raises for what does not fit.

    Args:
        machine: with the speeds that were measured.
        spec: of the model, or a catalogue entry's outline.
        cards: in stage order.
        wish: context, conversations and so on.
        title: for lists.
        choose: the placement chooses among the cards and orders them.
    """
    if not cards:
        return PlanView(title=title, placement=None, speed=None, refusal="there is no card to plan for")
    rig = wish.rig(None if choose else cards)
    try:
        placement = place(machine, spec, rig, device=Device("cuda:0", "", tuple(cards)))
    except DoesNotFitError as error:
        return PlanView(title=title, placement=None, speed=None, refusal=str(error))
    return view_of(machine, spec, placement, title=title)


def view_of(
    machine: Machine,
    spec: ModelSpec,
    placement: Placement,
    *,
    title: str = "",
    bench: BenchTable | None = None,
    left_out: str = "",
) -> PlanView:
    """A placement on cards with its speeds.

    Args:
        machine: with the speeds that were measured.
        spec: the model.
        placement: what is where.
        title: for lists.
        bench: recorded speeds, which replace the estimates; give them for the recorded plan only.
        left_out: why recorded speeds are not among the arguments, "" where there are none.
    """
    speed = speed_of(machine, spec, placement)
    order = ("assumed", "advertised", "measured")
    weakest = min((card_speeds(machine, stage.card).source for stage in placement.stages), key=order.index)
    source = f"estimate from {weakest} speeds" + (f"; {left_out}" if left_out else "")
    if bench is not None and bench.users_1 is not None:
        known = [getattr(bench, f"users_{count}") for count in USERS] + [bench.prompt, bench.hit_share]
        speed, source = recorded(speed, bench), "measured" if None not in known else "measured, ranges are estimates"
    times = stage_times(machine, spec, placement)
    return PlanView(title=title, placement=placement, speed=speed, times=times, source=source)


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
    if after.placement is None or after.speed is None:
        return f"cannot fit: {after.refusal}"
    if before.placement is None or before.speed is None:
        return "fits now"
    parts = []
    cache = after.cache_bytes - before.cache_bytes
    if abs(cache) >= LIKE_BYTES:
        parts.append(f"{_tenths(abs(cache))} {'less' if cache < 0 else 'more'} cache")
    ram = after.placement.total_bytes - before.placement.total_bytes
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
