"""GET /health and /ready: the two routes that need no key and tell nothing but stage and percent."""

from __future__ import annotations

from litestar import Response, get
from msgspec import Struct

from appliance.server.context import AnyRequest, Context

RETRY_S = "5"


class Health(Struct):
    """The process lives."""

    status: str = "ok"


class Ready(Struct):
    """How far the start-up is."""

    ready: bool
    stage: str
    percent: int
    device: str


@get("/health")
async def health() -> Health:
    """200 from the first second."""
    return Health()


@get("/ready")
async def ready(request: AnyRequest) -> Response[Ready]:
    """200 when requests are answered, else 503."""
    state = Context.of(request).backend.readiness()
    is_ready = state.ready and state.fault is None
    body = Ready(is_ready, "fault" if state.fault is not None else state.stage, state.percent, state.device)
    return Response(body, status_code=200 if is_ready else 503, headers={} if is_ready else {"Retry-After": RETRY_S})
