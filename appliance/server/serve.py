"""Listens, serves and leaves: the port is taken before the model loads, and a stop lets streams end properly."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from litestar.types import ASGIApp

from appliance.errors import AddressError, ExitCode
from appliance.server.backend import ServerConfig
from appliance.server.protocol import ApiProtocol

log = logging.getLogger("appliance.server")

BACKLOG = 512
HIGHEST_PORT = 65_535
DRAIN_S = 5.0
CLOSE_S = 1
POLL_S = 0.02
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def check_exposure(config: ServerConfig) -> None:
    """Refuses to listen beyond loopback without keys.

    Raises:
        AddressError: unless the rig says `open = true`.
    """
    if config.keys_file is not None or config.open or is_loopback(config.host):
        return
    raise AddressError(
        f"server.host is {config.host}, beyond loopback, without API keys: anybody who reaches it could use it",
        hint="set server.keys_file (strata keys add NAME), or server.open = true if that is meant",
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """Takes the address; the result listens already and is handed to `Service`.

    Raises:
        AddressError: in use, reserved, not ours, no such name, or no port number.
    """
    if not 0 <= port <= HIGHEST_PORT:
        raise AddressError(f"server.port is {port!r}; it must be a number from 1 to {HIGHEST_PORT}")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise AddressError(f"server.host {host} is no address and no known name", hint="use 127.0.0.1") from error
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _refusal(error, host, port) from error
    listener.setblocking(False)
    return listener


def _refusal(error: OSError, host: str, port: int) -> AddressError:
    where = f"{host} port {port}"
    if error.errno == errno.EADDRINUSE:
        return AddressError(
            f"cannot listen on {where}: another program listens there", hint="stop it or change server.port"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return AddressError(
            f"cannot listen on {where}: this user may not use that port", hint="use a server.port of 1024 or above"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return AddressError(
            f"cannot listen on {where}: this machine does not have that address",
            hint="set server.host to 127.0.0.1, to 0.0.0.0 or to an address of this machine",
        )
    return AddressError(f"cannot listen on {where}: {error.strerror}", hint="change server.host or server.port")


def urls(listener: socket.socket) -> str:
    """The address to open, for the start log."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: `Service` decides when to leave."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals alone."""
        yield


class Service:
    """One listening server, from the first second of loading to the exit code."""

    def __init__(self, app: ASGIApp, *, listener: socket.socket, drain: Callable[[float], None]) -> None:
        """Prepares; nothing runs yet.

        Args:
            app: from create_app.
            listener: from bind.
            drain: called once, on the event loop, when a stop is asked for: new requests are refused from then on and
                those in flight get a finish reason within the given seconds. Returns at once.
        """
        self._listener = listener
        self._drain = drain
        self._stop: asyncio.Future[ExitCode] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._early: ExitCode | None = None
        config = uvicorn.Config(
            app,
            http=ApiProtocol,
            ws="none",
            lifespan="on",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=CLOSE_S,
            h11_max_incomplete_event_size=64 * 1024,
        )
        self._server = _Server(config)
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its chat about starting is not a line per event
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)

    def stop(self, code: ExitCode = ExitCode.OK) -> None:
        """Asks for the end, from any thread; the first code stands. After a fault streams end by themselves."""
        loop = self._loop
        if loop is None:
            self._early = self._early or code
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
            loop.call_soon_threadsafe(self._set_code, code)

    async def run(self) -> ExitCode:
        """Serves until a signal or `stop`; a second signal leaves at once."""
        self._loop = asyncio.get_running_loop()
        self._stop = self._loop.create_future()
        if self._early is not None:
            self._set_code(self._early)
        handled = self._handle_signals(self._loop)
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        try:
            await asyncio.wait((serving, self._stop), return_when=asyncio.FIRST_COMPLETED)
            if not self._stop.done():
                serving.result()
                return ExitCode.FAULT
            code = self._stop.result()
            log.info("event=stopping code=%d requests=%d", code, len(self._server.server_state.tasks))
            await self._let_streams_end(drain=code is ExitCode.OK)
            self._server.should_exit = True
            await serving
            log.info("event=stopped code=%d", code)
            return code
        finally:
            for number in handled:
                self._loop.remove_signal_handler(number)

    def _set_code(self, code: ExitCode) -> None:
        if self._stop is not None and not self._stop.done():
            self._stop.set_result(code)

    def _on_signal(self) -> None:
        if self._stop is not None and self._stop.done():
            self._server.force_exit = True
        self._set_code(ExitCode.OK)

    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> list[signal.Signals]:
        handled = []
        for number in SIGNALS:
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread
                loop.add_signal_handler(number, self._on_signal)
                handled.append(number)
        return handled

    async def _let_streams_end(self, *, drain: bool) -> None:
        """Still listens, so that newcomers read 503 and not a refused connection."""
        loop = asyncio.get_running_loop()
        if drain:
            self._drain(DRAIN_S)
        end = loop.time() + DRAIN_S + CLOSE_S if drain else loop.time() + CLOSE_S
        while self._server.server_state.tasks and loop.time() < end and not self._server.force_exit:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)  # uvicorn has no event for this
