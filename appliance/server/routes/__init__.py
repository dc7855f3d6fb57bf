"""The table of routes; whatever is not in it does not exist."""

from __future__ import annotations

from litestar.handlers import HTTPRouteHandler

from appliance.server.routes.chat import chat
from appliance.server.routes.completions import completions
from appliance.server.routes.health import health, ready
from appliance.server.routes.metrics import metrics
from appliance.server.routes.models import model, models
from appliance.server.routes.status import status

ROUTES: tuple[HTTPRouteHandler, ...] = (
    health,
    ready,
    models,
    model,
    chat,
    completions,
    status,
    metrics,
)
