"""Every failure in the OpenAI error shape; nothing internal and no request text leaves through here."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException

from appliance.errors import ApplianceError, EngineFault, NotReadyError, QueueFullError, RequestError

log = logging.getLogger("appliance.server")

FAULT_RETRY_S = 10
INTERNAL_MESSAGE = "the server met an unexpected problem; the log names it under this request's id"
NO_ROUTE_MESSAGE = (
    "there is no such route, and there are no web pages; chat programs take this server's address with /v1 at its end, "
    "and docs/api.md lists the routes"
)

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


class UnauthorizedError(RequestError):
    """No key, or one that is not in the keys file."""

    http_status = 401
    default_code = "invalid_api_key"


class ForbiddenError(RequestError):
    """A Host or Origin that a keyless server does not answer."""

    http_status = 403
    default_code = "forbidden"


class NotFoundError(RequestError):
    """No such route or model."""

    http_status = 404
    default_code = "not_found"


class TooLargeError(RequestError):
    """The body is above the limit."""

    http_status = 413
    default_code = "body_too_large"


class MediaTypeError(RequestError):
    """The body is not declared as JSON."""

    http_status = 415
    default_code = "unsupported_media_type"


class ErrorDetail(msgspec.Struct):
    """The inside of the OpenAI error object."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct):
    """The OpenAI error object."""

    error: ErrorDetail


def error_body(error: ApplianceError) -> ErrorBody:
    """The error as clients read it."""
    kind = TYPES.get(error.http_status, "server_error")
    return ErrorBody(ErrorDetail(str(error), kind, error.param, error.code))


def retry_after_s(error: ApplianceError) -> int | None:
    """Seconds after which trying again can help, or None."""
    if isinstance(error, NotReadyError | QueueFullError):
        return error.retry_after_s
    return FAULT_RETRY_S if isinstance(error, EngineFault) else None


def error_headers(error: ApplianceError) -> dict[str, str]:
    """Headers that belong to the status."""
    headers = {}
    if (seconds := retry_after_s(error)) is not None:
        headers["Retry-After"] = str(seconds)
    if error.http_status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def respond(error: ApplianceError) -> Response[bytes]:
    """The whole response of an error."""
    return Response(
        msgspec.json.encode(error_body(error)),
        status_code=error.http_status,
        headers=error_headers(error),
        media_type="application/json",
    )


def on_appliance_error(_: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Litestar's handler for our own errors."""
    assert isinstance(error, ApplianceError)
    if isinstance(error, RequestError | NotReadyError | QueueFullError | EngineFault):
        return respond(error)
    return on_unexpected(_, error)


def on_http_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Litestar's handler for the framework's errors: unknown route, wrong method."""
    assert isinstance(error, HTTPException)
    if error.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return on_unexpected(request, error)
    if error.status_code == HTTPStatus.NOT_FOUND:
        return respond(NotFoundError(NO_ROUTE_MESSAGE, code="not_found"))
    phrase = HTTPStatus(error.status_code).phrase.lower()
    headers = dict(error.headers or {}) if isinstance(error, MethodNotAllowedException) else {}
    allowed = headers.get("allow")
    message = f"{request.method} is answered with: {phrase}" + (f"; allowed: {allowed}" if allowed else "")
    kind = TYPES.get(error.status_code, "invalid_request_error")
    body = ErrorBody(ErrorDetail(message, kind, None, phrase.replace(" ", "_")))
    return Response(
        msgspec.json.encode(body), status_code=error.status_code, headers=headers, media_type="application/json"
    )


def on_unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Litestar's handler for everything else: the type goes to the log, the text stays out of it and of the answer."""
    log.error("event=internal_error path=%s error=%s where=%s", request.url.path, type(error).__name__, where(error))
    return respond(ApplianceError(INTERNAL_MESSAGE))


def where(error: BaseException) -> str:
    """File and line of the innermost frame. Messages may quote a prompt, so they are not logged."""
    trace = error.__traceback__
    if trace is None:
        return "unknown"
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
