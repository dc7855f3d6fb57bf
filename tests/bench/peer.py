"""Measures this server beside llama.cpp's on the same file: `python -m tests.bench.peer` (needs the extra `bench`).

Greedy chats over HTTP streaming, thinking off, exactly TOKENS tokens each on both sides, after a warm-up. The two
servers take turns, so that a machine that grows slower or faster shows up as spread instead of as a winner. Measure
with nothing else running.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import load, servers

MODEL = Path(__file__).parents[2] / "appliance/data/strata-tiny.gguf"
CLIENTS = (1, 2, 4, 8)
TOKENS = 160
# Share of the peer's total that this server has to reach, by number of clients.
GOALS = {1: 0.25, 2: 0.6, 4: 1.5, 8: 3.5}


@dataclass(slots=True)
class Side:
    """What one server reached: tok/s by clients, one number a turn; and the first token of a long prompt."""

    name: str
    start: Callable[[Path], AbstractContextManager[int]]
    tokens_per_s: dict[int, list[float]] = field(default_factory=dict)
    first_token_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0

    def turn(self, model: Path, *, rounds: int, number: int) -> None:
        """Starts the server, measures everything once, stops it."""
        with self.start(model) as port:
            asyncio.run(load.total(port, max(CLIENTS), rounds=1, tokens=TOKENS, start=10_000))
            answers = asyncio.run(load.first_token(port, repeats=6))[1:]
            self.first_token_s += [answer.first_token_s for answer in answers]
            self.prompt_tokens = answers[0].prompt_tokens
            for clients in CLIENTS:
                start = number * 1000 + clients * 100
                result = asyncio.run(load.total(port, clients, rounds=rounds, tokens=TOKENS, start=start))
                self.tokens_per_s.setdefault(clients, []).append(result.tokens_per_s)

    def speed(self, clients: int) -> float:
        """Median over the turns, tok/s."""
        return statistics.median(self.tokens_per_s[clients])


def main() -> int:
    """Prints the table and writes the JSON; with --check the exit code says whether every goal is met."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", type=Path, default=MODEL)
    options.add_argument("--turns", type=int, default=2, help="how often the two servers take turns")
    options.add_argument("--rounds", type=int, default=4, help="questions each client asks, one after the other")
    options.add_argument("--only", choices=("ours", "peer"), help="measure one side")
    options.add_argument("--json", type=Path, help="write the numbers here")
    options.add_argument("--check", action="store_true", help="exit 1 unless every goal is met")
    given = options.parse_args()

    ours, peer = Side("this server", servers.appliance), Side("llama.cpp", servers.llama)
    sides = {"ours": [ours], "peer": [peer]}.get(given.only, [ours, peer])
    for number in range(given.turns):
        for side in sides:
            side.turn(given.model, rounds=given.rounds, number=number)
    print("total tok/s  " + "".join(f"{n} client{'s' * (n > 1)}".rjust(14) for n in CLIENTS))
    for side in sides:
        print(_line(side))
    missed: list[str] = []
    if not given.only:
        missed = judge(ours, peer)
        print("ratio        " + "".join(f"{ours.speed(n) / peer.speed(n):>14.2f}" for n in CLIENTS))
        print("goal         " + "".join(f"{GOALS[n]:>14.2f}" for n in CLIENTS))
        print("\n".join(missed) or "every goal is met")
    if given.json:
        machine = {"cores": os.cpu_count(), "processor": platform.processor() or platform.machine()}
        numbers = [
            {
                "server": s.name,
                "tokens_per_s": s.tokens_per_s,
                "first_token_s": s.first_token_s,
                "prompt_tokens": s.prompt_tokens,
            }
            for s in sides
        ]
        given.json.write_text(json.dumps({"machine": machine, "tokens": TOKENS, "servers": numbers}, indent=1) + "\n")
    return 1 if given.check and missed else 0


def judge(ours: Side, peer: Side) -> list[str]:
    """One line for each goal that is missed."""
    missed = [
        f"missed: {n} clients reach {ours.speed(n) / peer.speed(n):.2f} of the peer, the goal is {GOALS[n]}"
        for n in CLIENTS
        if ours.speed(n) < GOALS[n] * peer.speed(n)
    ]
    for fewer, more in itertools.pairwise(CLIENTS):
        if ours.speed(more) < ours.speed(fewer):
            missed.append(f"missed: the total falls from {fewer} to {more} clients")
    return missed


def _line(side: Side) -> str:
    cells = "".join(
        f"{side.speed(n):>7.0f} ({min(side.tokens_per_s[n]):.0f}-{max(side.tokens_per_s[n]):.0f})".rjust(14)
        for n in CLIENTS
    )
    first_ms = statistics.median(side.first_token_s) * 1000
    return f"{side.name:<13}{cells}   first token of {side.prompt_tokens}: {first_ms:.0f} ms"


if __name__ == "__main__":
    sys.exit(main())
