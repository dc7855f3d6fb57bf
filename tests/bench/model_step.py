"""Milliseconds of a decode step with drafts for 1, 2, 4 and 8 conversations, and of a prompt chunk, on the CPU.

Run as `python -m tests.bench.model_step [--threads N] [--parts]` with nothing else running; on a busy machine,
`--cpu-time` counts one thread's own processor time instead, which compares changes but is no speed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from types import ModuleType

import torch

from appliance.model.qwen4exp import draft, forward, row_builder
from appliance.model.qwen4exp.cpu import Qwen4Exp
from appliance.model.window import Commit, Span, Window
from tests.model.models import ROOT, TINY, greedy, open_slot
from tests.model.models import load as load_model

CONTEXT = 1024
DRAFTS = 4
WHOLES: tuple[tuple[ModuleType | type, str], ...] = (
    (forward.Trunk, "look_up"),
    (forward, "run_trunk"),
    (forward, "commit"),
    (row_builder.RowBuilder, "build"),
    (draft.Drafter, "propose"),
    (draft, "run_draft"),
)


def prompts() -> list[list[int]]:
    """Prompts of the built-in model's expected answers."""
    cases = json.loads((ROOT / "tests/data/strata-tiny-expected.json").read_text())["cases"]
    return [case["prompt_ids"] + case["output_ids"] for case in cases]


def start(model: Qwen4Exp, slots: int) -> list[tuple[int, ...]]:
    """Opens the slots with a short chat each; returns the rows that come next."""
    following = []
    for slot in range(slots):
        ids = (prompts()[3] * 2)[: 100 + slot]
        open_slot(model, slot, tokens=CONTEXT)
        model.forward(Window((Span(slot=slot, start=0, tokens=tuple(ids), logits_from=len(ids)),)))
        commit = Commit(slot=slot, kept=len(ids), next_token=ids[0], draft_max=DRAFTS)
        proposed = model.advance((commit,), greedy)[0]
        following.append((ids[0], *proposed.tokens))
    return following


def decode(model: Qwen4Exp, following: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """One step: window, greedy choice, advance. All rows are kept, so that every step costs the same."""
    spans = tuple(
        Span(slot=slot, start=model.length(slot), tokens=tokens, draft_count=len(tokens) - 1)
        for slot, tokens in enumerate(following)
    )
    chosen = model.likeliest(model.forward(Window(spans)))[0].tolist()
    commits, done = [], 0
    for span in spans:
        done += len(span.tokens)
        commits.append(Commit(slot=span.slot, kept=len(span.tokens), next_token=chosen[done - 1], draft_max=DRAFTS))
    proposed = model.advance(commits, model._rehearsed)
    return [(c.next_token, *d.tokens) for c, d in zip(commits, proposed, strict=True)]


def watch(times: dict[str, float], clock: Callable[[], float]) -> None:
    """Replaces the parts by timed ones; the times of a part include those inside it."""
    for owner, name in WHOLES:
        inner = getattr(owner, name)
        label = f"{owner.__name__.rsplit('.', 1)[-1]}.{name}"

        def timed(
            *args: object, _inner: Callable[..., object] = inner, _label: str = label, **kwargs: object
        ) -> object:
            begun = clock()
            result = _inner(*args, **kwargs)
            times[_label] += clock() - begun
            return result

        setattr(owner, name, timed)


def main() -> int:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--parts", action="store_true", help="also print the share of each part of the step")
    parser.add_argument("--cpu-time", action="store_true", help="processor time of one thread, for a busy machine")
    options = parser.parse_args()
    torch.set_num_threads(1 if options.cpu_time else options.threads)  # as many conversations at a time
    sys.setswitchinterval(1e-5)  # as the engine does
    clock = time.thread_time if options.cpu_time else time.perf_counter
    model = load_model(TINY, slots=8, tokens=CONTEXT)
    times: dict[str, float] = defaultdict(float)
    if options.parts:
        watch(times, clock)
    for slots in (1, 2, 4, 8):
        following = start(model, slots)
        for _ in range(3):
            following = decode(model, following)
        times.clear()
        spent = []
        for _ in range(options.steps):
            begun = clock()
            following = decode(model, following)
            spent.append((clock() - begun) * 1e3)
        print(
            f"{slots} x {DRAFTS + 1} rows: min {min(spent):6.2f} ms, median {statistics.median(spent):6.2f} ms, "
            f"at most {slots * (DRAFTS + 1) / statistics.median(spent) * 1e3:6.0f} tok/s"
        )
        for label, seconds in sorted(times.items(), key=lambda item: -item[1]):
            print(f"    {label:28s} {seconds * 1e3 / options.steps:7.3f} ms {100 * seconds * 1e3 / sum(spent):5.1f} %")
    ids = (prompts()[3] * 8)[:512]
    for chunk in (64, 300, 512):
        spent = []
        for _ in range(5):
            open_slot(model, 0, tokens=CONTEXT)
            begun = clock()
            model.forward(Window((Span(slot=0, start=0, tokens=tuple(ids[:chunk]), logits_from=chunk - 1),)))
            model.advance((Commit(slot=0, kept=chunk, next_token=ids[0], draft_max=DRAFTS),), greedy)
            spent.append((clock() - begun) * 1e3)
        print(f"prompt of {chunk:4d} rows: min {min(spent):6.1f} ms, median {statistics.median(spent):6.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
