"""HTTP/1.1 on the wire: uvicorn's h11 protocol, with broken requests answered once and in the API's shape."""

from __future__ import annotations

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from appliance.errors import RequestError
from appliance.server.problems import error_body

BROKEN = RequestError("the request is not valid HTTP/1.1, or its body is cut short", code="invalid_http")


class ApiProtocol(H11Protocol):
    """Answers a body that is cut short, and never answers twice."""

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
