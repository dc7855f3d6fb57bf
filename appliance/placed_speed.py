"""Owns the speeds that follow from a placement on cards: each card's window, the groups' schedule, tokens a second."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.cost import Speed, estimate, limit, pipeline_of
from appliance.groups import Pipeline, Schedule, best
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.stage_footprint import model_bytes
from appliance.placed import Placement
from appliance.rig.machine import Machine
from appliance.scheduler.costs import USUAL, Slopes
from appliance.speeds import card_speeds, lane, load_of, reaches, shares_of
from appliance.window_cost import Lane, Load, Way, hit_share, stage_s

# A window of one row took this much longer than its bytes on the one card that was measured: its launches depend on one
# another (docs/performance.md).
LAUNCHES_S = 0.003
# No row is free, even where launches hide its bytes.
LEAST = 0.00005
# Rows and steps between which slopes are taken.
SLOPE_DRAFTS, SLOPE_USERS = 4, 4

# The company that a plan is judged in: half of eight people ask at once, two drafts each.
COMPANY, DRAFTS = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """One card in an expected window.

    Attributes:
        window_s: of its layers, head and drafts included where they are.
        idle: share of time without work in the groups' schedule.
        handoff_s: to the next card; from the last, its numbers back to the first.
        route: how, as far as it was measured: "peer" or "ram"; "" for the last.
    """

    window_s: float
    idle: float
    handoff_s: float
    route: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the formulas need of a placement."""

    load: Load
    lanes: tuple[Lane, ...]
    way: Way
    hits: tuple[float, ...]


def cost_of(machine: Machine, spec: ModelSpec, placement: Placement) -> Cost:
    """The placement's cards as the formulas see them.

    Args:
        machine: with the speeds that were measured.
        spec: the model.
        placement: on one card or more.
    """
    draft = placement.draft_max > 0
    load = load_of(spec, draft=draft)
    model = model_bytes(spec, page_tokens=placement.page_tokens, kv_type=placement.kv_type, draft=draft)
    lanes = []
    following = [*(stage.card for stage in placement.stages[1:]), None]
    for stage, after in zip(placement.stages, following, strict=True):
        shares = shares_of(spec, model, range(stage.first_layer, stage.past_layer))
        cached = stage.cached * load.experts_bytes * shares.layers
        direct = after is not None and reaches(machine, stage.card, after)
        lanes.append(lane(card_speeds(machine, stage.card), shares, cache_bytes=cached, direct=direct))
    way = Way(
        draft_max=placement.draft_max,
        batch_mtp=placement.batch_mtp,
        groups=placement.groups,
        prompt_chunk=max(placement.prompt_chunk, placement.chunk_rows),
        ram_gbps=machine.rates.ram_gbps.value,
    )
    hits = tuple(hit_share(stage.cached).middle for stage in placement.stages)
    return Cost(load=load, lanes=tuple(lanes), way=way, hits=hits)


def speed_of(machine: Machine, spec: ModelSpec, placement: Placement) -> Speed:
    """Hits and tokens a second."""
    cost = cost_of(machine, spec, placement)
    return estimate(cost.load, cost.lanes, cost.way)


def company_rate(machine: Machine, spec: ModelSpec, placement: Placement) -> float:
    """Tokens a second of the expected company, as bytes and launches allow."""
    cost, users = cost_of(machine, spec, placement), min(COMPANY, placement.parallel)
    drafts = min(DRAFTS, placement.draft_max)
    return limit(cost.load, cost.lanes, cost.way, users=users, drafts=drafts, hits=cost.hits)


def busy_groups(machine: Machine, spec: ModelSpec, placement: Placement) -> int:
    """How many groups keep the cards busy: as many as serve the expected company best, no more than its most."""
    schedule, _, _ = _schedule(machine, spec, placement)
    return len(schedule.groups)


def draft_slopes(machine: Machine, spec: ModelSpec, placement: Placement) -> Slopes:
    """What rows and draft steps are expected to add to a window, until the engine has measured it.

    Of all cards together, as a conversation alone meets them; what was usual where there is no card.
    """
    if not placement.stages or placement.draft_max == 0:
        return USUAL
    cost = cost_of(machine, spec, placement)

    def seconds(users: int, drafts: int, *, chain: bool) -> float:
        last = len(cost.lanes) - 1
        return sum(
            stage_s(cost.load, lane, cost.way, users=users, drafts=drafts, hits=hits, last=chain and number == last)
            for number, (lane, hits) in enumerate(zip(cost.lanes, cost.hits, strict=True))
        )

    window = seconds(1, 0, chain=False) + LAUNCHES_S
    rows, chain = seconds(1, SLOPE_DRAFTS, chain=False), seconds(1, SLOPE_DRAFTS, chain=True)
    many, many_chain = (seconds(SLOPE_USERS, SLOPE_DRAFTS, chain=chained) for chained in (False, True))
    step = (chain - rows) / SLOPE_DRAFTS
    more = ((many_chain - many) / SLOPE_DRAFTS - step) / (SLOPE_USERS - 1)
    row = (many - (window - LAUNCHES_S)) / (SLOPE_USERS * (1 + SLOPE_DRAFTS) - 1)
    return Slopes(row=max(row, LEAST) / window, step=max(step, LEAST) / window, more=max(more, LEAST) / window)


def _schedule(machine: Machine, spec: ModelSpec, placement: Placement) -> tuple[Schedule, Pipeline, Cost]:
    """The expected company's way through the cards."""
    cost, users = cost_of(machine, spec, placement), min(COMPANY, placement.parallel)
    drafts = min(DRAFTS, placement.draft_max)
    pipeline = pipeline_of(cost.load, cost.lanes, cost.way, users=users, drafts=drafts, hits=cost.hits)
    return best(pipeline, users, most_groups=placement.groups), pipeline, cost


def stage_times(machine: Machine, spec: ModelSpec, placement: Placement) -> tuple[StageTime, ...]:
    """Each card in a window of the expected company."""
    schedule, pipeline, cost = _schedule(machine, spec, placement)
    size = max(schedule.groups)
    routes = [*("peer" if one.direct else "ram" for one in cost.lanes[:-1]), ""]
    return tuple(
        StageTime(window_s=pipeline.stage_s(number, size), idle=idle, handoff_s=pipeline.handoff_s[number], route=route)
        for number, (idle, route) in enumerate(zip(schedule.idle, routes, strict=True))
    )
