"""Tokens per second in total with 1, 2, 4 and 8 greedy clients on the built-in model, inside one process, without HTTP.

Run: python -m tests.bench.engine_throughput [--clients 1 2 4 8] [--tokens 160] [--draft-max 4 ...] [--threads 2]
with nothing else running. Prints nothing about speed unless the first answers equal the expected ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import replace

import torch

from appliance.engine.config import EngineConfig
from appliance.engine.handle import EngineStatus
from tests.engine.harness import Running, collect, running
from tests.engine.real import CARD_CONFIG, CONFIG, EXPECTED, STOPS, builtin, chats


def main() -> None:
    """Runs the table once for each longest draft asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--draft-max", type=int, nargs="+", default=[CONFIG.draft_max])
    parser.add_argument("--draft-min-p", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="cpu or cuda:0")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("drafts clients  total tok/s  ms/window  forward  draft  sample   host  tokens/window  accepted by depth")
    for draft_max in arguments.draft_max:
        base = CONFIG if arguments.device == "cpu" else CARD_CONFIG
        config = replace(base, draft_max=draft_max, draft_min_p=arguments.draft_min_p)
        asyncio.run(_table(config, arguments.clients, tokens=arguments.tokens, device=arguments.device))


async def _table(config: EngineConfig, clients: list[int], *, tokens: int, device: str) -> None:
    model = builtin() if device == "cpu" else builtin(device, kv_type="bf16")
    async with running(model, config) as run:
        await _require_right(run, exact=device == "cpu")
        # Graphs and kernels of every width are made before anything is timed.
        for count in clients:
            await asyncio.gather(*(collect(run.ask(prompt, tokens)) for prompt in chats()[:count]))
        alone = [(await collect(run.ask(prompt, tokens))).ids for prompt in chats()]
        for count in clients:
            before = run.status()
            began_s = time.perf_counter()
            answers = await asyncio.gather(*(collect(run.ask(prompt, tokens)) for prompt in chats()[:count]))
            took_s = time.perf_counter() - began_s
            same = sum(answer.ids == own for answer, own in zip(answers, alone, strict=False))
            print(f"{same} of {count} texts equal the same client's text alone")
            _print_row(config.draft_max, count, count * tokens / took_s, before, run.status())


async def _require_right(run: Running, *, exact: bool) -> None:
    """All answers on the CPU; on a card, whose activations are fp16, says how far each goes with the float32 one."""
    for case in json.loads(EXPECTED.read_text())["cases"]:
        answer = await collect(run.ask(case["prompt_ids"], len(case["output_ids"]), stop_token_ids=STOPS))
        right = [token for token in case["output_ids"] if token not in STOPS]
        if exact and answer.ids != right:
            raise SystemExit(f"wrong answer to {case['prompt']!r}: {answer.ids}; speeds of wrong answers mean nothing")
        pairs = enumerate(zip(answer.ids, right, strict=False))
        same = next((place for place, (own, other) in pairs if own != other), len(right))
        if same < min(4, len(right)):
            raise SystemExit(f"wrong answer to {case['prompt']!r} from token {same}: {answer.ids}")
        if not exact:
            print(f"{same} of {len(right)} tokens as in float32: {case['prompt']!r}")


def _print_row(draft_max: int, clients: int, rate: float, before: EngineStatus, after: EngineStatus) -> None:
    windows = after.timings.windows - before.timings.windows
    parts_ms = [
        1000 * (getattr(after.timings, name) - getattr(before.timings, name)) / windows
        for name in ("forward_s", "draft_s", "sample_s", "host_s")
    ]
    offered = [new - old for new, old in zip(after.drafts.offered, before.drafts.offered, strict=True)]
    accepted = [new - old for new, old in zip(after.drafts.accepted, before.drafts.accepted, strict=True)]
    shares = " ".join(f"{hit / asked:.2f}" for hit, asked in zip(accepted, offered, strict=True) if asked)
    tokens = after.timings.generated_tokens - before.timings.generated_tokens
    forward, draft, sample, host = parts_ms
    print(
        f"{draft_max:>6} {clients:>7} {rate:>12.0f} {sum(parts_ms):>10.2f} {forward:>8.2f} {draft:>6.2f} "
        f"{sample:>7.2f} {host:>6.2f} {tokens / windows:>14.1f}  {shares}"
    )


if __name__ == "__main__":
    main()
