"""Host time between two windows with eight streaming clients over HTTP: python -m tests.bench.host_time.

Without --url it serves a model of clockwork (windows that only wait) with the real engine and server, so that no card
is needed; with --url it asks a running server, whose /v1/status has the times. The clients are another process.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import subprocess
import sys
import urllib.request
from typing import Any

from appliance.engine.config import EngineConfig
from appliance.engine.engine import Engine
from appliance.server.app import create_app
from appliance.server.backend import ServerConfig
from appliance.server.serve import Service, bind
from tests.bench.clockwork import ROWS, Clockwork
from tests.builders.live_server import FakeBackend, ids, text_stack

CONFIG = EngineConfig(
    slots=8, page_tokens=64, pages=1024, max_tokens=4096, prompt_chunk=32, max_rows=ROWS, span_rows=13
)


def main() -> None:
    """Prints one line for each number of clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--window-ms", type=float, default=4.0)
    parser.add_argument("--url", help="of a running server, such as http://127.0.0.1:8080")
    parser.add_argument("--plain", action="store_true", help="the loop that waits for every window")
    parser.add_argument("--switch-us", type=float, help="instead of the engine's sys.setswitchinterval")
    parser.add_argument("--rounds", type=int, default=3, help="answers of each client, one after the other")
    asked = parser.parse_args()
    if asked.url is not None:
        for clients in asked.clients:
            _ask(int(asked.url.rsplit(":", 1)[1]), clients, asked)
            with urllib.request.urlopen(f"{asked.url}/v1/status", timeout=10) as answer:
                _say(clients, json.load(answer)["timings"])
    else:
        asyncio.run(_clockwork(asked))


def _ask(port: int, clients: int, asked: argparse.Namespace) -> None:
    """Lets a process of its own ask, since clients in this one would share the interpreter."""
    numbers = (port, clients, asked.tokens, asked.rounds)
    subprocess.run([sys.executable, "-m", "tests.bench.load", *map(str, numbers)], check=True)


async def _clockwork(asked: argparse.Namespace) -> None:
    vocabulary = text_stack().tokenizer.vocabulary
    model = Clockwork(
        window_s=asked.window_ms / 1e3, token=ids(" the")[-1], vocabulary=vocabulary, ahead=not asked.plain
    )
    engine = Engine(model, CONFIG, on_fault=print)
    engine.start(asyncio.get_running_loop())
    if asked.switch_us is not None:
        sys.setswitchinterval(asked.switch_us / 1e6)
    listener = bind("127.0.0.1", 0)
    service = Service(create_app(FakeBackend(engine.handle), ServerConfig()), listener=listener, drain=engine.drain)
    serving = asyncio.create_task(service.run())
    for clients in asked.clients:
        await asyncio.to_thread(_ask, listener.getsockname()[1], clients, asked)
        late = sorted(model.late_s)
        p50, p99 = (1e6 * late[round(share * (len(late) - 1))] for share in (0.5, 0.99))
        print(f"{clients} clients: end of a window noticed p50 {p50:.0f} us, p99 {p99:.0f} us late; ", end="")
        model.late_s.clear()
        _say(clients, dataclasses.asdict(engine.handle.status().timings))
    engine.stop()
    service.stop()
    await serving


def _say(clients: int, timings: dict[str, Any]) -> None:
    if timings["host_gap_p99_s"] is None:
        print(f"{clients} clients: the server has no windows that follow each other on a card")
        return
    gap, turn = ([1e6 * timings[f"host_{what}_{name}_s"] for name in ("p50", "p99")] for what in ("gap", "turn"))
    print(
        f"{clients} clients: from a window's end seen to the next launch p50 {turn[0]:.0f} us, p99 {turn[1]:.0f} us; "
        f"the card had no window p50 {gap[0]:.0f} us, p99 {gap[1]:.0f} us",
        flush=True,
    )


if __name__ == "__main__":
    main()
