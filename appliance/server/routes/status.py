"""GET /v1/status: everything about the appliance in one object."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata

from litestar import get
from msgspec import Struct

from appliance.engine.handle import (
    CacheStatus,
    DraftCounts,
    DraftPlan,
    QueueStatus,
    SamplingParams,
    SlotStatus,
    StageStatus,
    TimingStatus,
    WindowCost,
)
from appliance.server.backend import Readiness, RigSummary
from appliance.server.context import AnyRequest, Context

PACKAGES = ("strata-appliance", "torch", "triton", "litestar", "uvicorn", "tokenizers")


class ModelStatus(Struct):
    """The served model."""

    id: str
    aliases: tuple[str, ...]
    description: str
    context_tokens: int
    draft_note: str | None


class Defaults(Struct):
    """What a bare request gets."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    thinking: bool


class StageView(Struct):
    """One card of several and its layers, averages since start."""

    device: str
    first_layer: int
    past_layer: int
    windows: int
    window_ms: float
    idle_share: float
    handoff_ms: float
    route: str


class Drafting(Struct):
    """What the next windows of each group carry and why, and what such windows took."""

    plans: tuple[DraftPlan, ...]
    costs: tuple[WindowCost, ...]


class Status(Struct):
    """The object. `stages` is empty where one device computes."""

    ready: Readiness
    model: ModelStatus
    rig: RigSummary
    stages: tuple[StageView, ...]
    slots: tuple[SlotStatus, ...]
    queue: QueueStatus
    cache: CacheStatus
    timings: TimingStatus
    drafts: DraftCounts
    drafting: Drafting
    requests_finished: Mapping[str, int]
    nonfinite_rows: int
    sampling: Defaults
    versions: Mapping[str, str]
    last_fault: str | None


@get("/v1/status")
async def status(request: AnyRequest) -> Status:
    """Answers as soon as there is an engine, also while it drains and after its fault."""
    context = Context.of(request)
    engine, card, state = context.backend.engine(), context.backend.model(), context.backend.readiness()
    now = engine.status()
    return Status(
        ready=state,
        model=ModelStatus(card.id, card.aliases, card.description, engine.max_tokens, card.draft_note),
        rig=context.backend.rig_summary(),
        stages=tuple(stage_view(stage) for stage in now.stages),
        slots=now.slots,
        queue=now.queue,
        cache=now.cache,
        timings=now.timings,
        drafts=now.drafts,
        drafting=Drafting(now.plans, now.costs),
        requests_finished=now.requests_finished,
        nonfinite_rows=now.nonfinite_rows,
        sampling=defaults(
            context.backend.sampling_defaults(), thinking=context.backend.text().template.thinks_by_default
        ),
        versions=versions(),
        last_fault=now.last_fault or state.fault,
    )


def stage_view(stage: StageStatus) -> StageView:
    """Totals as averages of a window."""
    windows, seconds = max(1, stage.windows), stage.busy_s + stage.idle_s
    return StageView(
        device=stage.device,
        first_layer=stage.first_layer,
        past_layer=stage.past_layer,
        windows=stage.windows,
        window_ms=1000 * stage.busy_s / windows,
        idle_share=stage.idle_s / seconds if seconds else 0.0,
        handoff_ms=1000 * stage.handoff_s / windows,
        route=stage.route,
    )


def defaults(sampling: SamplingParams, *, thinking: bool) -> Defaults:
    """The defaults as the page shows them."""
    return Defaults(sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, thinking)


@cache
def versions() -> dict[str, str]:
    """Python and the packages that decide what an answer is."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
