"""Owns a plan in words and as JSON: what `strata plan` prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from appliance.cost import USERS
from appliance.examine import Examined
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.placed import Item, Placement, StagePlan
from appliance.placed_speed import StageTime
from appliance.planning.from_rig import placed_view
from appliance.planning.measured import stale, standing, subject_of
from appliance.planning.plan import PlanView
from appliance.rig.load import LoadedRig
from appliance.rig.machine import Machine
from appliance.rig.size import format_size
from appliance.window_cost import Span


def plan_object(examined: Examined) -> dict[str, Any]:
    """The plan for programs; bytes, seconds and shares as numbers."""
    placement, seen = examined.placement, _view(examined)
    found: dict[str, Any] = {
        "rig": str(examined.loaded.path),
        "model": examined.spec.name,
        **dataclasses.asdict(placement),
        "total_bytes": placement.total_bytes,
        "free_bytes": placement.free_bytes,
        "layer_split": list(placement.layer_split),
    }
    found["stages"] = [
        {
            "card": {"index": stage.card.index, "uuid": stage.card.uuid, "name": stage.card.name},
            "bus_id": stage.card.bus_id,
            "layers": [stage.first_layer, stage.past_layer],
            "items": [dataclasses.asdict(item) for item in stage.items],
            "budget_bytes": stage.budget_bytes,
            "free_bytes": stage.free_bytes,
            "expert_share": stage.cached,
        }
        for stage in placement.stages
    ]
    if seen is not None and seen.speed is not None:
        for stage, time in zip(found["stages"], seen.times, strict=True):
            stage |= dataclasses.asdict(time)
        users = zip(USERS, seen.speed.users, strict=True)
        found["estimate"] = {
            "source": seen.source,
            "hits": [seen.speed.hits.least, seen.speed.hits.most],
            "tokens_per_s": {str(count): [span.least, span.most] for count, span in users},
            "prompt_tokens_per_s": [seen.speed.prompt.least, seen.speed.prompt.most],
        }
    return found


def plan_lines(examined: Examined) -> Iterator[str]:
    """The plan for people."""
    placement = examined.placement
    yield f"model      {examined.spec.name}"
    yield f"device     {', '.join(_stage_name(stage) for stage in placement.stages) or placement.device}"
    yield f"serving    {placement.parallel} conversations of {placement.max_tokens} tokens"
    yield f"drafts     up to {placement.draft_max}"
    chunk, pages = placement.prompt_chunk, placement.pages
    yield f"windows    {chunk} prompt tokens, {pages} pages of {placement.page_tokens} tokens"
    yield ""
    yield from _items(placement.items)
    source = examined.machine.ram.limit_source
    yield f"{'together':<18}{format_size(placement.total_bytes):>12}"
    yield f"{'allowed':<18}{format_size(placement.budget_bytes):>12}  {f'limit in {source}' if source else 'free RAM'}"
    for stage in placement.stages:
        yield ""
        if len(placement.stages) > 1:
            yield f"{_stage_name(stage)}: layers {stage.first_layer} to {stage.past_layer - 1}"
        yield from _items(stage.items)
        yield f"{'card: together':<18}{format_size(stage.used_bytes):>12}"
        yield f"{'card: allowed':<18}{format_size(stage.budget_bytes):>12}"
    seen = _view(examined)
    if seen is not None and seen.speed is not None:
        yield ""
        yield from speed_lines(seen)
    if not placement.stages:
        yield ""
        yield cpu_speed(examined.loaded, examined.machine, examined.spec, placement)
    for sentence in (*placement.notes, *examined.differences):
        yield f"note: {sentence}"


def speed_lines(seen: PlanView) -> Iterator[str]:
    """Expected hits, speeds, and each card's part of a window."""
    assert seen.speed is not None
    speed = seen.speed
    users = ", ".join(f"{n}: {_range(span)}" for n, span in zip(USERS, speed.users, strict=True))
    yield f"hits {_range(speed.hits, '.0%')}; tokens a second for users {users};"
    yield f"  prompts {_range(speed.prompt)} ({seen.source})"
    if len(seen.cards) > 1 and seen.placement is not None:
        stages = zip(seen.placement.stages, seen.times, strict=True)
        yield "a window of four users (estimate):"
        yield from (f"  {stage_words(stage, time)}" for stage, time in stages)


def _range(span: Span, form: str = ",.0f") -> str:
    """A range, or the number that was measured."""
    least, most = format(span.least, form), format(span.most, form)
    return least if least == most else f"{least}-{most}"


def cpu_speed(loaded: LoadedRig, machine: Machine, spec: ModelSpec, placement: Placement) -> str:
    """Recorded speeds of a rig on the CPU, or that there are none: they are not estimated."""
    bench, subject = loaded.rig.machine.bench, subject_of(loaded, machine, spec, placement)
    if standing(bench, subject) is None:
        left_out = stale(bench, subject)
        return "speeds on the CPU are not estimated" + (f"; {left_out}" if left_out else "")
    rates = {count: getattr(bench, f"users_{count}") for count in USERS}
    users = ", ".join(f"{count}: {rate:,.0f}" for count, rate in rates.items() if rate is not None)
    prompts = "" if bench.prompt is None else f"; prompts {bench.prompt:,.0f}"
    return f"tokens a second for users {users}{prompts} (measured)"


def stage_words(stage: StagePlan, time: StageTime) -> str:
    """One card's part of a window, as bytes and launches allow."""
    layers = f"layers {stage.first_layer}-{stage.past_layer - 1}"
    ways = {"peer": "straight to the next", "ram": "through RAM to the next", "": "back to the first"}
    handoff = f"{1000 * time.handoff_s:.2f} ms {ways[time.route]}"
    return f"card {stage.card.index} {layers} {1000 * time.window_s:.1f} ms, idle {time.idle:.0%}, {handoff}"


def _stage_name(stage: StagePlan) -> str:
    return f"card {stage.card.index} {stage.card.name} ({stage.card.bus_id})"


def _items(items: Sequence[Item]) -> Iterator[str]:
    for item in items:
        yield f"{item.name:<18}{format_size(item.size_bytes):>12}  {item.note}".rstrip()


def _view(examined: Examined) -> PlanView | None:
    """Speeds, where cards compute."""
    if not examined.placement.stages:
        return None
    return placed_view(examined.loaded, examined.machine, examined.spec, examined.placement)
