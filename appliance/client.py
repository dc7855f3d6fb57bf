"""Owns what the command line asks of a running server: readiness and streamed chat answers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from appliance.errors import AddressError, EngineFault, NotReadyError, RequestError, UsageError

EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer: kind "reasoning", "content" or "tool"."""

    kind: str
    text: str


def base_url(host: str, port: int) -> str:
    """URL under which a server that listens there is reached from this machine."""
    name = EVERY_ADDRESS.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


class Client:
    """A server at an address; used as a context."""

    def __init__(self, url: str, *, key: str | None = None, transport: httpx.BaseTransport | None = None) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        key = (key or "").strip()  # files end with a line break, those of Windows with two
        if any(not "!" <= letter <= "~" for letter in key):
            raise UsageError("the API key holds letters that no key has", hint="copy it again, or see $OPENAI_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            self._http = httpx.Client(
                base_url=self._url,
                headers=headers,
                timeout=httpx.Timeout(None, connect=CONNECT_S),
                transport=transport,
                trust_env=not self._url.startswith(("http://127.", "http://localhost", "http://[::1]")),
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise UsageError(f"--url: {url} is not a URL: {error}", hint="such as http://127.0.0.1:8080") from error

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def readiness(self, *, timeout_s: float = 10.0) -> tuple[bool, str]:
        """(ready, stage with percent).

        Raises:
            AddressError: nothing answers there.
        """
        with self._translated():
            answer = self._http.get("/ready", timeout=timeout_s)
        try:
            body = answer.json()
        except ValueError:
            body = {}
        body = body if isinstance(body, dict) else {}
        stage = str(body.get("stage", f"HTTP {answer.status_code}"))
        percent = body.get("percent")
        return answer.status_code == 200, stage if percent is None else f"{stage} ({percent} %)"

    def chat(self, messages: Sequence[Message], *, model: str, thinking: bool | None = None) -> Generator[Piece]:
        """Pieces of the answer as they come; closing the iterator stops the answer.

        Raises:
            AddressError, NotReadyError, UsageError, RequestError, EngineFault: by what the server says.
        """
        body: dict[str, Any] = {
            "model": model,
            "stream": True,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
        }
        if thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": thinking}
        try:
            encoded = json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise UsageError("the message is not UTF-8", hint="see the terminal's or the file's encoding") from None
        kind = {"Content-Type": "application/json"}
        with (
            self._translated(),
            self._http.stream("POST", "/v1/chat/completions", content=encoded, headers=kind) as answer,
        ):
            if answer.status_code != 200:
                answer.read()
                _refused(answer)
            for line in answer.iter_lines():
                if not line.startswith("data:"):
                    continue
                data = line[5:].strip()
                if data == "[DONE]":
                    return
                yield from _pieces(json.loads(data))

    def models(self) -> list[str]:
        """Ids that the server serves."""
        with self._translated():
            answer = self._http.get("/v1/models")
        if answer.status_code != 200:
            _refused(answer)
        return [str(entry["id"]) for entry in answer.json()["data"]]

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            raise AddressError(f"nothing answers at {self._url}", hint="start it with: strata serve") from error
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise UsageError(f"--url: {self._url}: {error}", hint="such as http://127.0.0.1:8080") from error
        except httpx.HTTPError as error:
            raise AddressError(f"{self._url}: the connection ended: {str(error) or type(error).__name__}") from error


def _pieces(event: dict[str, Any]) -> Generator[Piece]:
    if "error" in event:
        error = event["error"]
        raise EngineFault(str(error.get("message", error)) if isinstance(error, dict) else str(error))
    for choice in event.get("choices", []):
        delta = choice.get("delta", {})
        if delta.get("reasoning_content"):
            yield Piece("reasoning", delta["reasoning_content"])
        if delta.get("content"):
            yield Piece("content", delta["content"])
        for call in delta.get("tool_calls") or ():
            function = call.get("function", {})
            yield Piece("tool", (function.get("name") or "") + (function.get("arguments") or ""))


def _refused(answer: httpx.Response) -> None:
    try:
        error = answer.json()["error"]
        sentence = str(error["message"])
    except (ValueError, KeyError, TypeError):
        sentence = f"HTTP {answer.status_code}"
    if answer.status_code in (401, 403):
        raise UsageError(f"the server refuses: {sentence}", hint="give a key with --key or in OPENAI_API_KEY")
    if answer.status_code in (429, 503):
        raise NotReadyError(f"the server cannot answer now: {sentence}")
    raise RequestError(f"the server refuses: {sentence}")
