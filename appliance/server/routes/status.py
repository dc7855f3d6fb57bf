"""GET /v1/status: everything about the appliance in one object."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata

from litestar import get
from msgspec import Struct

from appliance.engine.handle import CacheStatus, DraftCounts, QueueStatus, SamplingParams, SlotStatus, TimingStatus
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


class Status(Struct):
    """The object."""

    ready: Readiness
    model: ModelStatus
    rig: RigSummary
    slots: tuple[SlotStatus, ...]
    queue: QueueStatus
    cache: CacheStatus
    timings: TimingStatus
    drafts: DraftCounts
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
        slots=now.slots,
        queue=now.queue,
        cache=now.cache,
        timings=now.timings,
        drafts=now.drafts,
        requests_finished=now.requests_finished,
        nonfinite_rows=now.nonfinite_rows,
        sampling=defaults(
            context.backend.sampling_defaults(), thinking=context.backend.text().template.thinks_by_default
        ),
        versions=versions(),
        last_fault=now.last_fault or state.fault,
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
