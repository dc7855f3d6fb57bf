"""What the routes share: backend, configuration, counters and the worker threads for text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from litestar import Request

from appliance.errors import NotReadyError
from appliance.server.backend import Backend, ModelCard, ServerConfig
from appliance.server.body import body_limit_bytes
from appliance.server.metrics import Metrics
from appliance.server.problems import NotFoundError

Result = TypeVar("Result")
AnyRequest = Request[Any, Any, Any]


class Context:
    """One per application."""

    def __init__(self, backend: Backend, config: ServerConfig) -> None:
        self.backend = backend
        self.config = config
        self.metrics = Metrics(backend)
        self._threads = ThreadPoolExecutor(max_workers=config.text_threads, thread_name_prefix="text")

    @classmethod
    def of(cls, request: AnyRequest) -> Context:
        """The context of the application that got the request."""
        context = request.app.state.context
        assert isinstance(context, Context)
        return context

    def require_ready(self) -> None:
        """Raises NotReadyError unless requests are answered now."""
        state = self.backend.readiness()
        if state.fault is not None:
            raise NotReadyError("the engine stopped after a fault and restarts")
        if not state.ready:
            raise NotReadyError(f"the model is not ready: {state.stage}, {state.percent} %")

    def require_model(self, name: str | None) -> ModelCard:
        """One rule on every route: absent means the served model; else its id or an alias.

        Raises:
            NotFoundError: another name.
        """
        card = self.backend.model()
        if name is None or name == card.id or name in card.aliases:
            return card
        known = ", ".join((card.id, *card.aliases))
        raise NotFoundError(
            f"model {name[:80]!r} is not served here; there is: {known}", code="model_not_found", param="model"
        )

    def body_limit(self) -> int:
        """Bytes of the largest body."""
        return self.config.body_limit_bytes or body_limit_bytes(self.backend.model().context_tokens)

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Runs blocking text work beside the event loop, a few at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Lets the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def client_of(request: AnyRequest) -> str | None:
    """The name of the request's key."""
    name = request.scope["state"].get("client")
    return name if isinstance(name, str) else None
