"""Times the sampler: one line per kind of window.

Run: python -m tests.bench.sampling [--device cuda] [--vocabulary N] [--threads N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from kernels.sampling import Row, Rules, build, choose
from kernels.sampling.reference import choose_reference

KINDS: dict[str, Rules] = {
    "greedy": Rules(temperature=0),
    "top_k 20, top_p 0.9": Rules(temperature=0.6, top_k=20, top_p=0.9),
    "top_k 40": Rules(top_k=40),
    "top_p 0.95": Rules(temperature=0.7, top_p=0.95),
    "min_p 0.05": Rules(min_p=0.05),
    "no filter": Rules(),
    "top_k 20, penalties": Rules(temperature=0.6, top_k=20, presence_penalty=1.0, repetition_penalty=1.1),
}


def main() -> None:
    """Checks each kind against the reference, then prints its times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device, vocabulary = torch.device(arguments.device), arguments.vocabulary
    print(f"{'rows':>4}  {'kind':<22} {'build ms':>9} {'choose ms':>10}   {device.type}, vocabulary {vocabulary}")
    for count in (1, 8, 40):
        logits = _logits(count, vocabulary)
        for name, rules in KINDS.items():
            building, choosing = _times_ms(logits, _rows(rules, count), name, device)
            print(f"{count:>4}  {name:<22} {building:>9.3f} {choosing:>10.3f}")


def _times_ms(logits: torch.Tensor, rows: list[Row], name: str, device: torch.device) -> tuple[float, float]:
    """Milliseconds of build and choose, once the first rows agree with the reference."""
    on_device, vocabulary = logits.to(device), logits.shape[1]
    params = build(rows, vocabulary=vocabulary, device=device)
    if choose(on_device, params).ids[:2].tolist() != choose_reference(logits[:2], rows[:2])[0]:
        raise SystemExit(f"{name}: the batched sampler and the reference disagree")
    building = _median_ms(lambda: build(rows, vocabulary=vocabulary, device=device), device)
    return building, _median_ms(lambda: choose(on_device, params), device)


def _logits(count: int, vocabulary: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn((count, vocabulary), generator=generator) * 3


def _rows(rules: Rules, count: int) -> list[Row]:
    """Rows of eight requests at most; each has generated 200 distinct tokens."""
    generated = [[(token, 1 + token % 3) for token in range(first, first + 600, 3)] for first in range(8)]
    return [Row(rules, 100 + number, generated=generated[number % 8]) for number in range(count)]


def _median_ms(run: Callable[[], object], device: torch.device) -> float:
    """Median of 30 runs after 3 that are not counted."""
    times = []
    for _ in range(33):
        started = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return sorted(times[3:])[15] * 1e3


if __name__ == "__main__":
    main()
