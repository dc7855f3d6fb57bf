"""GET /metrics for Prometheus."""

from __future__ import annotations

from litestar import Response, get
from prometheus_client import CONTENT_TYPE_LATEST

from appliance.server.context import AnyRequest, Context


@get("/metrics")
async def metrics(request: AnyRequest) -> Response[bytes]:
    """All metrics in the text format."""
    return Response(Context.of(request).metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})
