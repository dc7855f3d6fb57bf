"""Puts the server together: routes, error handlers and the gate in front of them."""

from __future__ import annotations

from typing import Any

from litestar import Litestar, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.types import LifeSpanReceive, LifeSpanScope, LifeSpanSend, Receive, Scope, Send

from appliance.errors import ApplianceError
from appliance.server.backend import Backend, ServerConfig
from appliance.server.body import ClientGoneError
from appliance.server.context import AnyRequest, Context
from appliance.server.gate import Gate
from appliance.server.problems import on_appliance_error, on_http_error, on_unexpected
from appliance.server.routes import ROUTES

CLIENT_CLOSED = 499


class GuardedApp(Litestar):
    """A Litestar application that nothing reaches except through the gate, not even an unknown route."""

    __slots__ = ("_gate",)

    _gate: Gate

    async def __call__(
        self, scope: Scope | LifeSpanScope, receive: Receive | LifeSpanReceive, send: Send | LifeSpanSend
    ) -> None:
        """The ASGI entry."""
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        await self._gate(scope, receive, send)  # type: ignore[arg-type]

    def guard(self, config: ServerConfig) -> None:
        """Puts the gate in place."""
        self._gate = Gate(super().__call__, config)


def create_app(backend: Backend, config: ServerConfig) -> Litestar:
    """The application.

    Args:
        backend: the appliance behind it; may still be loading.
        config: where it listens and whom it answers.

    Raises:
        RigError: the keys file cannot be read.
    """
    context = Context(backend, config)
    app = GuardedApp(
        route_handlers=list(ROUTES),
        state=State({"context": context}, deep_copy=False),
        exception_handlers={
            ApplianceError: on_appliance_error,
            ClientGoneError: on_client_gone,
            HTTPException: on_http_error,
            Exception: on_unexpected,
        },
        on_shutdown=[context.close],
        openapi_config=None,
        logging_config=None,
        debug=False,
    )
    app.guard(config)
    return app


def on_client_gone(_: AnyRequest, __: Exception) -> Response[Any]:
    """Nobody reads this; it keeps the log line honest."""
    return Response(b"", status_code=CLIENT_CLOSED)
