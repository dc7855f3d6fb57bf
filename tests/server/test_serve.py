"""Listening and leaving: the address (CFG-13, CTR-11), the drain (CTR-08), the fault."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from appliance.errors import AddressError, ExitCode
from appliance.server.backend import ServerConfig
from appliance.server.serve import bind, check_exposure, is_loopback, urls
from tests.builders.fake_engine import FakeEngine, endless, hold
from tests.builders.live_server import ids, live
from tests.server.asking import USER, events_of, finish_of

HELLO = {"messages": [USER], "stream": True}


def refused(host, port):
    with pytest.raises(AddressError) as caught:
        bind(host, port).close()
    assert caught.value.exit_code is ExitCode.ADDRESS
    assert caught.value.hint or "1 to 65535" in caught.value.message
    return str(caught.value)


def test_cfg_13_different_messages_for_different_problems(monkeypatch):
    """CFG-13"""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = refused("127.0.0.1", other.getsockname()[1])
    foreign = refused("192.0.2.1", 8080)
    wrong = refused("127.0.0.1", 70_000)
    unknown = refused("no-such-host.invalid", 8080)

    def deny(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", deny)
    reserved = refused("127.0.0.1", 80)
    assert "another program" in taken
    assert "does not have that address" in foreign
    assert "may not use that port" in reserved
    assert "1 to 65535" in wrong
    assert "no known name" in unknown
    assert len({taken, foreign, reserved, wrong, unknown}) == 5


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::1"])
def test_bind_listens(host):
    with bind(host, 0) as listener:
        port = listener.getsockname()[1]
        socket.create_connection((host if host != "0.0.0.0" else "127.0.0.1", port), timeout=5).close()
        assert urls(listener).endswith(f":{port}")


EXPOSURE = {
    "loopback": (ServerConfig(host="127.0.0.1"), True),
    "loopback name": (ServerConfig(host="localhost"), True),
    "loopback v6": (ServerConfig(host="::1"), True),
    "everywhere": (ServerConfig(host="0.0.0.0"), False),
    "everywhere v6": (ServerConfig(host="::"), False),
    "office": (ServerConfig(host="192.168.1.5"), False),
    "a name": (ServerConfig(host="box"), False),
    "everywhere, open": (ServerConfig(host="0.0.0.0", open=True), True),
    "everywhere, keys": (ServerConfig(host="0.0.0.0", keys_file="keys.json"), True),
}


@pytest.mark.parametrize(("config", "allowed"), EXPOSURE.values(), ids=EXPOSURE.keys())
def test_ctr_11_beyond_loopback_needs_keys_or_open(config, allowed):
    """CTR-11"""
    if allowed:
        check_exposure(config)
    else:
        with pytest.raises(AddressError, match="without API keys"):
            check_exposure(config)


def test_is_loopback():
    assert is_loopback("127.3.2.1")
    assert not is_loopback("128.0.0.1")


def test_ctr_08_a_stop_ends_every_stream_with_a_finish_reason():
    """CTR-08: one decodes, one reads, one waits; newcomers get 503; exit 0 in time."""

    def script(stream):
        return endless(ids(" a")[0])(stream) if len(stream.engine.requests) == 1 else hold()(stream)

    with live(FakeEngine(script, slots=2)) as server:

        async def main():
            async with httpx.AsyncClient(base_url=server.url, timeout=10) as client:
                tasks = []
                for number in range(3):
                    tasks.append(asyncio.create_task(client.post("/v1/chat/completions", json=HELLO)))
                    await asyncio.to_thread(
                        server.engine.wait_until, lambda engine, wanted=number + 1: len(engine.requests) == wanted
                    )
                whole = asyncio.create_task(client.post("/v1/chat/completions", json=HELLO | {"stream": False}))
                await asyncio.to_thread(server.engine.wait_until, lambda engine: len(engine.requests) == 4)
                server.service.stop()
                return await asyncio.gather(*tasks, whole)

        started = time.monotonic()
        *streams, whole = asyncio.run(main())
        assert server.join() is ExitCode.OK
        assert time.monotonic() - started < 8
    assert [finish_of(events_of(answer)) for answer in streams] == ["length"] * 3
    assert whole.json()["choices"][0]["finish_reason"] == "length"


def test_ctr_08_newcomers_read_503_while_streams_end():
    """CTR-08, CTR-09"""
    with live(FakeEngine(hold())) as server:
        server.engine.drain = lambda deadline_s: setattr(server.engine, "draining", True)
        with (
            httpx.Client(base_url=server.url, timeout=10) as client,
            client.stream("POST", "/v1/chat/completions", json=HELLO),
        ):
            server.engine.wait_until(lambda engine: engine.running)
            server.service.stop()
            server.loop.call_soon_threadsafe(lambda: None)
            while not server.engine.draining:
                client.get("/health")
            answer = client.post("/v1/chat/completions", json=HELLO)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
            assert "retry-after" in answer.headers
            assert client.get("/ready").json()["stage"] == "draining"
            assert client.get("/v1/status").status_code == 200
            server.call(server.engine.release)
        assert server.join() is ExitCode.OK


def test_a_fault_ends_the_process_with_its_own_code():
    with live(FakeEngine(hold())) as server:
        server.service.stop(ExitCode.FAULT)
        assert server.join() is ExitCode.FAULT


PROGRAM = """
import asyncio, sys
from tests.builders.fake_engine import FakeEngine, endless
from tests.builders.live_server import FakeBackend, ids
from appliance.server.app import create_app
from appliance.server.backend import Readiness, ServerConfig
from appliance.server.serve import Service, bind
engine = FakeEngine(endless(ids(" a")[0]), max_tokens=100_000_000)
backend = FakeBackend(engine)
def drain(deadline_s):
    backend.state = Readiness(stage="draining", percent=100, ready=False, device="cpu")
    engine.drain(deadline_s)
listener = bind("127.0.0.1", 0)
service = Service(create_app(backend, ServerConfig()), listener=listener, drain=drain)
print(listener.getsockname()[1], flush=True)
sys.exit(asyncio.run(service.run()))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ctr_08_a_signal_drains_and_exits_with_0(number):
    """CTR-08"""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        port = int(process.stdout.readline())
        with (
            httpx.Client(timeout=10) as client,
            client.stream("POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=HELLO) as answer,
        ):
            lines = answer.iter_lines()
            next(lines)
            os.kill(process.pid, number)
            rest = list(lines)
        assert process.wait(8) == 0, process.stderr.read()
    finally:
        process.kill()
        process.communicate()
    assert "data: [DONE]" in rest
    assert any('"finish_reason":"length"' in line for line in rest)
