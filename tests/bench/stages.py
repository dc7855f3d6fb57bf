"""Stages and groups of the real shape with made-up weights: the interval between windows, each stage's time, prompts.

`python -m tests.bench.stages --layers 24` compares one stage with two, on two cards where there are two.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from appliance.bench.synthetic import SyntheticSource, parse_shape, synthetic_spec
from appliance.model.interface import Ask, StagedModel, Stepped, Ticket
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.loading import build_stages, give_stores
from appliance.model.qwen4exp.device.model import DeviceModel
from appliance.model.qwen4exp.device.ngram import ngram_table
from appliance.model.qwen4exp.device.shares import on_device, stage_devices
from appliance.model.qwen4exp.device.stage import Common
from appliance.model.window import Span, Window

SLOTS, PAGE, DRAFTS = 8, 64, 4
PROMPT = 8192
WARM, ROUNDS = 16, 60


def load(*, layers: int, split: tuple[int, ...], groups: int, devices: tuple[str, ...], tokens: int) -> DeviceModel:
    """The model, all experts on the cards; the same weights however it is split, on one card."""
    spec = synthetic_spec(parse_shape(f"real:{layers}"), draft=True)
    pages = tokens // PAGE + 1
    plan = LoadPlan(
        device="cuda:0",
        slots=SLOTS,
        pages=SLOTS * pages,
        page_tokens=PAGE,
        max_tokens=tokens,
        max_window_rows=40,
        chunk_rows=PROMPT if tokens > PROMPT else 0,
        draft_max=DRAFTS,
        kv_type="bf16",
        layer_split=split,
        devices=devices,
        groups=groups,
    )
    places = stage_devices(plan)
    sources = {device: SyntheticSource(spec.tensors, device) for device in places}
    pdl = all(torch.cuda.get_device_capability(device) >= (9, 0) for device in places)
    parts = build_stages(Common(spec=spec, plan=plan, pdl=pdl), [sources[device] for device in places], draft=True)
    give_stores(parts, spec, plan)
    for stage in parts.stages:
        with on_device(stage.device):
            assert stage.store is not None
            stage.store.fill(sources[stage.device].expert_words())
            if stage.has_ngram:
                stage.give_ngrams(ngram_table(stage.source, spec, home="vram"))
            torch.cuda.synchronize()
    return DeviceModel(spec, plan, parts)


@dataclass
class Chat:
    """A conversation that is decoded greedily."""

    slot: int
    tokens: list[int] = field(default_factory=list)
    drafts: tuple[int, ...] = ()

    def span(self, model: StagedModel) -> Span:
        """Its next rows."""
        if not self.tokens:
            return Span(slot=self.slot, start=0, tokens=tuple(10 * self.slot + place for place in range(4)))
        tokens = (self.tokens[-1], *self.drafts)
        start = model.length(self.slot)
        return Span(slot=self.slot, start=start, tokens=tokens, draft_count=len(self.drafts))

    def take(self, span: Span, found: Stepped) -> None:
        """What they came to."""
        right = found.kept - (len(span.tokens) - span.draft_count)
        self.tokens += found.tokens[: right + 1]
        self.drafts = found.drafts[:DRAFTS]


@dataclass(frozen=True)
class Pace:
    """Of windows of all groups, once they are under way; the host's times from an answer seen to the next one sent."""

    interval_s: float
    host_s: float
    host_p99_s: float
    texts: list[list[int]]


def open_slot(model: StagedModel, slot: int, pages: int) -> None:
    """With pages for the longest context."""
    model.open_slot(slot)
    model.set_pages(slot, range(slot * pages, (slot + 1) * pages))


def decode(model: StagedModel, *, users: int, groups: int, pages: int, rounds: int = ROUNDS) -> Pace:
    """Keeps a window of every group on its way."""
    chats = [Chat(slot) for slot in range(users)]
    for chat in chats:
        open_slot(model, chat.slot, pages)

    def submit(lane: int) -> tuple[list[Chat], Ticket]:
        some = chats[lane::groups]
        window = Window(tuple(chat.span(model) for chat in some))
        return some, model.submit(window, [Ask(draft_max=DRAFTS)] * len(some), lane=lane)

    flying = deque(submit(lane) for lane in range(groups))
    intervals: list[float] = []
    host: list[float] = []
    before_s = time.perf_counter()
    for _ in range((WARM + rounds) * groups):
        some, ticket = flying.popleft()
        stepped = model.collect(ticket)
        seen_s = time.perf_counter()
        for chat, span, found in zip(some, ticket.window.spans, stepped, strict=True):
            chat.take(span, found)
        flying.append(submit(ticket.lane))
        sent_s = time.perf_counter()
        host.append(sent_s - seen_s)
        intervals.append(sent_s - before_s)
        before_s = sent_s
    for _, ticket in flying:
        model.collect(ticket)
    steady = sorted(host[WARM * groups :])
    return Pace(
        interval_s=statistics.mean(intervals[WARM * groups :]),
        host_s=statistics.median(steady),
        host_p99_s=steady[int(len(steady) * 0.99)],
        texts=[chat.tokens[:40] for chat in chats],
    )


def read(model: StagedModel, parts: Sequence[int], *, groups: int, pages: int) -> float:
    """Seconds until a prompt is read in chunks of these lengths, as many on their way as there are lanes for them."""
    ids = tuple((7 * place + 3) % 2000 for place in range(sum(parts)))
    open_slot(model, 0, pages)
    flying: deque[Ticket] = deque()
    lanes = range(groups, groups + model.reads) if model.reads else range(1)
    began_s, at = time.perf_counter(), 0
    for number, size in enumerate(parts):
        if len(flying) == len(lanes):
            model.collect(flying.popleft())
        last = at + size == len(ids)
        span = Span(slot=0, start=at, tokens=ids[at : at + size], logits_from=size - last)
        ask = Ask(draft_max=DRAFTS) if last else Ask(next_token=ids[at + size])
        flying.append(model.submit(Window((span,)), [ask], lane=lanes[number % len(lanes)]))
        at += size
    for ticket in flying:
        model.collect(ticket)
    return time.perf_counter() - began_s


def show(name: str, model: StagedModel, *, users: int, groups: int, pages: int) -> list[list[int]]:
    """Prints a line for the windows and one for each stage; returns the texts."""
    decode(model, users=users, groups=groups, pages=pages, rounds=WARM)  # compiles and captures
    before = model.stages
    pace = decode(model, users=users, groups=groups, pages=pages)
    share = users / groups
    print(
        f"{name}, {users} users: {pace.interval_s * 1e3:.3f} ms between windows of {share:.0f}, "
        f"{share / pace.interval_s:.0f} user windows/s; "
        f"host {pace.host_s * 1e6:.0f} us, p99 {pace.host_p99_s * 1e6:.0f}",
        flush=True,
    )
    for old, new in zip(before, model.stages, strict=True):
        windows = new.windows - old.windows
        busy_s, idle_s = new.busy_s - old.busy_s, new.idle_s - old.idle_s
        passed_us = (new.handoff_s - old.handoff_s) / windows * 1e6
        print(
            f"    {new.device}, layers {new.first_layer} to {new.past_layer - 1}: "
            f"{busy_s / windows * 1e3:.3f} ms busy, "
            f"{idle_s / (busy_s + idle_s):.0%} idle, hand-off {passed_us:.0f} us {new.route}"
        )
    return pace.texts


def main() -> None:
    """Compares one stage with two."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--layers", type=int, default=24)
    options.add_argument("--users", type=int, nargs="+", default=[1, 2, 4, 8])
    options.add_argument("--prompts", action="store_true", help=f"also a prompt of {PROMPT} tokens")
    asked = options.parse_args()
    devices = ("cuda:0", "cuda:1") if torch.cuda.device_count() > 1 else ()
    tokens = PROMPT + 256 if asked.prompts else 1152
    pages = tokens // PAGE + 1
    split = (asked.layers // 2,)
    one = load(layers=asked.layers, split=(), groups=1, devices=(), tokens=tokens)
    two = load(layers=asked.layers, split=split, groups=2, devices=devices, tokens=tokens)
    print(f"synthetic, {asked.layers} layers; two stages on {' and '.join(devices) or 'one card'}", flush=True)
    texts: dict[int, list[list[list[int]]]] = {}
    for name, model, groups in (("one stage", one, 1), ("two stages", two, 1), ("two stages, two groups", two, 2)):
        for users in asked.users:
            if users >= groups and users * (1 + DRAFTS) <= 40 * groups:
                found = show(name, model, users=users, groups=groups, pages=pages)
                texts.setdefault(users, []).append(found)
    if not devices:  # two cards have weights of their own
        same = all(text == found[0] for found in texts.values() for text in found)
        print("texts equal those of one stage" if same else "TEXTS DIFFER")
    if asked.prompts:
        for name, model, groups in (("one stage", one, 1), ("two stages", two, 2)):
            for count in (1, 2, 4):
                parts = [PROMPT // count] * count
                took_s = min(read(model, parts, groups=groups, pages=pages) for _ in range(4))
                print(f"{name}, {PROMPT} tokens in {count} chunks: {took_s * 1e3:.1f} ms, {PROMPT / took_s:.0f} tok/s")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
