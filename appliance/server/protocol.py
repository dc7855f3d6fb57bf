"""HTTP/1.1 on the wire: uvicorn's h11 protocol, with broken requests answered once and in the API's shape."""

from __future__ import annotations

import asyncio
import socket

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from appliance.errors import RequestError
from appliance.server.problems import error_body

# From the connection, or from the first byte of a later request, to the end of the request's header.
HEADER_S = 30.0
NEXT_BYTES = 64 * 1024
BROKEN = RequestError("the request is not valid HTTP/1.1, or its body is cut short", code="invalid_http")


class ApiProtocol(H11Protocol):
    """Answers a body that is cut short, never answers twice, and lets nobody hold a connection without asking."""

    header_s = HEADER_S
    _header_end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come. Whoever is switched off without a word is found out by the kernel."""
        super().connection_made(transport)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._await_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, of its body or of the next one."""
        super().data_received(data)
        if self.flow.read_paused and self._holds_next():
            self.flow.resume_reading()
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self.timeout_keep_alive_task is None:
            self._await_header()

    def _holds_next(self) -> bool:
        """A request that came before the answer to the last one waits here; reading on shows when its sender leaves."""
        return self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) < NEXT_BYTES

    def _await_header(self) -> None:
        """Later bytes do not lengthen the wait, or a byte now and then would hold the connection for ever."""
        if self._header_end is None:
            self._header_end = self.loop.call_later(self.header_s, self.timeout_keep_alive_handler)

    def _stop_waiting(self) -> None:
        if self._header_end is not None:
            self._header_end.cancel()
        self._header_end = None

    def _unsupported_upgrade_warning(self) -> None:
        """Clients offer HTTP/2 and are content without; nobody needs to read of it at every request."""

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client closed its sending half. An unfinished body is refused; otherwise the client is gone.

        Returns:
            True keeps the transport open until the refusal has been written.
        """
        if self.conn.their_state is not h11.SEND_BODY or self.conn.our_state is not h11.SEND_RESPONSE:
            return False
        self.conn.receive_data(b"")
        self.handle_events()
        return True

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no HTTP, unless an answer is on its way already."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        body = msgspec.json.encode(error_body(BROKEN))
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        if getattr(self, "cycle", None) is not None and not self.cycle.response_complete:
            # The application still waits for the body: tell it that the client is gone, so that it answers nothing.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
