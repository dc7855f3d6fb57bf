"""Reads a request's body: one limit, one time-out, strict JSON, and every refusal names the field."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import re
from typing import Any, TypeVar

import msgspec
from litestar import Request

from appliance.errors import RequestError
from appliance.server.problems import MediaTypeError, TooLargeError

LIMIT_FLOOR_BYTES = 4 * 2**20
# A token is seldom longer than 8 characters, and JSON may escape each of them as \uXXXX.
BYTES_PER_TOKEN = 48
DISCARD_BYTES = 256 * 2**20
DISCARD_IDLE_S = 0.5

AnyRequest = Request[Any, Any, Any]
Wire = TypeVar("Wire", bound=msgspec.Struct)

_AT = re.compile(r" - at `(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")


class ClientGoneError(Exception):
    """The client left; there is nobody to answer."""


def body_limit_bytes(context_tokens: int) -> int:
    """Above the longest JSON of a prompt that fills the context."""
    return LIMIT_FLOOR_BYTES + BYTES_PER_TOKEN * context_tokens


async def read_body(request: AnyRequest, *, limit_bytes: int, idle_s: float) -> bytes:
    """Reads it all.

    Raises:
        MediaTypeError: it is not declared as JSON.
        TooLargeError: it is longer than the limit; announced lengths are refused unread.
        RequestError: it stops coming.
        ClientGoneError: the connection broke.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise MediaTypeError("the body must be sent with content-type application/json")
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed not in ("", "identity"):
        raise MediaTypeError("the body must be sent as it is, without content-encoding")
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limit_bytes:
        await _discard(request)
        raise too_large(limit_bytes)
    body = bytearray()
    while True:
        try:
            async with asyncio.timeout(idle_s):
                message = await request.receive()
        except TimeoutError:
            raise RequestError(
                f"the body is incomplete: nothing came for {idle_s:g} s", code="incomplete_body"
            ) from None
        if message["type"] != "http.request":
            raise ClientGoneError
        body += message.get("body", b"")
        if len(body) > limit_bytes:
            body.clear()
            await _discard(request)
            raise too_large(limit_bytes)
        if not message.get("more_body", False):
            return bytes(body)


async def _discard(request: AnyRequest) -> None:
    """Reads on where the answer closes the connection: closed with unread data, it is reset and the answer lost."""
    if request.headers.get("connection", "").lower() != "close" and request.scope["http_version"] != "1.0":
        return
    left = DISCARD_BYTES
    with contextlib.suppress(TimeoutError):
        while left > 0:
            async with asyncio.timeout(DISCARD_IDLE_S):
                message = await request.receive()
            if message["type"] != "http.request" or not message.get("more_body", False):
                return
            left -= len(message.get("body", b""))


def too_large(limit_bytes: int) -> TooLargeError:
    """The refusal of a body above the limit."""
    return TooLargeError(f"the body is larger than {limit_bytes} bytes, more than a prompt of the whole context needs")


def decode(body: bytes, kind: type[Wire]) -> Wire:
    """Body to struct; a field that is null equals one that is absent, also one we do not know.

    Raises:
        RequestError: not JSON, nested too deep, or a field that is unknown, missing, mistyped or out of range.
    """
    try:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            fields = msgspec.json.decode(body)
            if not isinstance(fields, dict) or None not in fields.values():
                raise _refusal(error, kind) from None
            return msgspec.convert({key: value for key, value in fields.items() if value is not None}, kind)
    except msgspec.ValidationError as error:
        raise _refusal(error, kind) from None
    except RecursionError:
        raise RequestError("the body is nested too deep", code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError, UnicodeEncodeError) as error:
        at = re.search(r"byte \d+", str(error))
        raise RequestError(
            f"the body is not valid JSON{f' at {at[0]}' if at else ''}; NaN and Infinity are not JSON",
            code="invalid_json",
        ) from None


def _refusal(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> RequestError:
    """The decoder's sentence as ours: its path becomes `param`."""
    text = str(error)
    at = _AT.search(text)
    path = at["path"].removeprefix("$").removeprefix(".").replace("[...]", "") if at else ""
    sentence = _AT.sub("", text)
    sentence = sentence[:1].lower() + sentence[1:]
    if unknown := _UNKNOWN.search(text):
        name = unknown["name"]
        near = (
            [] if path else difflib.get_close_matches(name, [f.encode_name for f in msgspec.structs.fields(kind)], n=1)
        )
        hint = f"did you mean {near[0]}?" if near else "the documentation lists the fields"
        param = f"{path}.{name}" if path else name
        return RequestError(f"unknown field: {param}", code="unknown_parameter", param=param, hint=hint)
    if missing := _MISSING.search(text):
        param = f"{path}.{missing['name']}" if path else missing["name"]
        return RequestError(f"required field is missing: {param}", code="missing_required_parameter", param=param)
    if not path:
        return RequestError(f"the body must be a JSON object: {sentence}", code="invalid_json")
    return RequestError(f"{path}: {sentence}", code="invalid_value", param=path)
