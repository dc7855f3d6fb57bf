"""Stands before every route, known or not: request id, CORS, keys, Host and Origin, the log line, the last resort."""

from __future__ import annotations

import ipaddress
import logging
import secrets
import time
from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec
from litestar.enums import HttpMethod, ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from appliance.errors import ApplianceError
from appliance.server.auth import KeyRing
from appliance.server.backend import ServerConfig
from appliance.server.problems import (
    INTERNAL_MESSAGE,
    ForbiddenError,
    UnauthorizedError,
    error_body,
    error_headers,
    where,
)

log = logging.getLogger("appliance.server")

OPEN_PATHS = frozenset({"/health", "/ready"})
POLLED_PATHS = OPEN_PATHS | {"/v1/status", "/metrics"}
PREFLIGHT_AGE_S = b"600"
EXPOSED = b"x-request-id, retry-after"
Headers = list[tuple[bytes, bytes]]


def header(scope: HTTPScope, name: bytes) -> bytes | None:
    """The first header of that lower-case name."""
    return next((value for key, value in scope["headers"] if key == name), None)


class Gate:
    """Default-deny in front of an application."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._ring = KeyRing(config.keys_file) if config.keys_file is not None else None
        self._origins = frozenset(origin.rstrip("/").lower() for origin in config.cors_origins)
        self._hosts = frozenset(name.lower() for name in config.allowed_hosts) | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, or lets the request through."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        request_id = f"req-{secrets.token_hex(8)}"
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        extra = [(b"x-request-id", request_id.encode()), *self._cors(scope)]
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        try:
            if not await self._preflight(scope, send_with_headers):
                state["client"] = self._admit(scope)
                await self._app(as_get(scope), receive, send_with_headers)
        except ApplianceError as error:
            await refuse(error, send_with_headers)
        except Exception as error:
            log.error("event=internal_error id=%s error=%s where=%s", request_id, type(error).__name__, where(error))
            if status == 0:
                await refuse(ApplianceError(INTERNAL_MESSAGE), send_with_headers)
        finally:
            elapsed_ms = (time.monotonic() - started) * 1000
            level = logging.DEBUG if scope["path"] in POLLED_PATHS and status < HTTPStatus.BAD_REQUEST else logging.INFO
            log.log(
                level,
                "event=request id=%s client=%s method=%s path=%s status=%s ms=%.1f%s",
                request_id,
                state.get("client") or "-",
                scope["method"],
                printable(scope["path"]),
                status or "gone",
                elapsed_ms,
                state.get("log", ""),
            )

    def _admit(self, scope: HTTPScope) -> str | None:
        """The key's name, or None where no key is needed; raises the refusal."""
        if self._ring is None:
            self._check_names(scope)
            return None
        if scope["path"] in OPEN_PATHS:
            return None
        scheme, _, key = (header(scope, b"authorization") or b"").partition(b" ")
        if scheme.lower() != b"bearer" or not key:
            raise UnauthorizedError(
                "this server needs an API key: send it as 'Authorization: Bearer KEY'", code="missing_api_key"
            )
        name = self._ring.verify(key.strip(b" "))
        if name is None:
            raise UnauthorizedError("the API key is not one of this server's keys")
        return name

    def _check_names(self, scope: HTTPScope) -> None:
        """Without keys a page of another site must not reach us, by its own name or through a rebound one (SEC-06)."""
        host = header(scope, b"host")
        if host is not None and not self._trusted(host_name(host.decode("latin-1"))):
            raise ForbiddenError(
                "this Host name is not answered without API keys",
                code="host_not_allowed",
                hint="add it to server.allowed_hosts in rig.toml, or use the address",
            )
        origin = header(scope, b"origin")
        if origin is None or self._allows(origin):
            return
        try:
            name = urlsplit(origin.decode("latin-1")).hostname or ""
        except ValueError:
            name = ""
        if not self._trusted(name):
            raise ForbiddenError(
                "pages of this Origin are not answered without API keys",
                code="origin_not_allowed",
                hint="add it to server.cors_origins in rig.toml",
            )

    def _trusted(self, name: str) -> bool:
        if name.lower().rstrip(".") in self._hosts:
            return True
        try:
            ipaddress.ip_address(name.partition("%")[0])
        except ValueError:
            return False
        return True

    def _allows(self, origin: bytes) -> bool:
        return "*" in self._origins or origin.decode("latin-1").lower() in self._origins

    def _cors(self, scope: HTTPScope) -> Headers:
        origin = header(scope, b"origin")
        if not self._origins:
            return []
        if origin is None or not self._allows(origin):
            return [(b"vary", b"Origin")]
        return [
            (b"access-control-allow-origin", b"*" if "*" in self._origins else origin),
            (b"access-control-expose-headers", EXPOSED),
            (b"vary", b"Origin"),
        ]

    async def _preflight(self, scope: HTTPScope, send: Send) -> bool:
        """Answers a browser's question before the call itself; it never carries a key (SEC-04)."""
        origin = header(scope, b"origin")
        if scope["method"] != "OPTIONS" or origin is None or header(scope, b"access-control-request-method") is None:
            return False
        if not self._allows(origin):
            raise ForbiddenError(
                "pages of this Origin may not call this server",
                code="origin_not_allowed",
                hint="add it to server.cors_origins in rig.toml",
            )
        headers: Headers = [
            (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
            (b"access-control-allow-headers", header(scope, b"access-control-request-headers") or b"authorization"),
            (b"access-control-max-age", PREFLIGHT_AGE_S),
        ]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return True


def as_get(scope: HTTPScope) -> HTTPScope:
    """HEAD is GET to the routes; whoever writes to the wire leaves the body out."""
    return {**scope, "method": HttpMethod.GET} if scope["method"] == "HEAD" else scope


def host_name(value: str) -> str:
    """The name or address of a Host header, without its port."""
    if value.startswith("["):
        return value[1:].partition("]")[0]
    return value.rpartition(":")[0] if ":" in value else value


def printable(path: str) -> str:
    """A path as one word of a log line."""
    return "".join(letter if "!" <= letter <= "~" else "?" for letter in path[:120])


async def refuse(error: ApplianceError, send: Send) -> None:
    """Sends an error outside of any route."""
    body = msgspec.json.encode(error_body(error))
    headers: Headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *((key.lower().encode(), value.encode()) for key, value in error_headers(error).items()),
    ]
    await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
