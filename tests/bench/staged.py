"""Models whose layers are parted over stages, made up at the real shape or tiny, and windows of chats through them."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from appliance.bench.synthetic import SyntheticSource, parse_shape, synthetic_spec
from appliance.gguf.reader import open_set
from appliance.model.interface import Ask, StagedModel, Stepped, Ticket
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.chunk_shapes import RECORDED_ROWS
from appliance.model.qwen4exp.device.loading import build_stages, give_stores
from appliance.model.qwen4exp.device.model import DeviceModel, load_device_model
from appliance.model.qwen4exp.device.ngram import ngram_table
from appliance.model.qwen4exp.device.shares import on_device, stage_devices
from appliance.model.qwen4exp.device.stage import Common
from appliance.model.qwen4exp.spec import ModelSpec, read_spec
from appliance.model.window import Span, Window

ORACLE = Path(__file__).parents[1] / "oracle/base4/model.gguf"
SLOTS = 8


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large everything is: the real shape on cards, or so small that the interpreter ends.

    Attributes:
        layers: of the made-up model; 0: the tiny one of the tests, launch by launch.
        page: tokens of a KV page.
        prompt: tokens of the long prompt; 0 for none.
        warm, rounds: windows of each group before, and while times are taken.
        drafts: of a window, and steps of a chain.
    """

    layers: int
    page: int
    prompt: int
    warm: int
    rounds: int
    drafts: int

    @property
    def tokens(self) -> int:
        """Context of one conversation."""
        return max(self.prompt, (1 + self.drafts) * (2 * self.warm + self.rounds)) + 16

    @property
    def pages(self) -> int:
        """KV pages of one conversation."""
        return self.tokens // self.page + 1


REAL = Scale(layers=24, page=64, prompt=8192, warm=16, rounds=60, drafts=4)
TINY = Scale(layers=0, page=16, prompt=28, warm=0, rounds=1, drafts=1)


def load(scale: Scale, *, split: tuple[int, ...], groups: int, devices: tuple[str, ...]) -> DeviceModel:
    """The model, all experts on the cards; the same weights however it is split."""
    tiny = scale.layers == 0
    plan = LoadPlan(
        device="cuda:0" if torch.cuda.is_available() else "cpu",
        slots=SLOTS,
        pages=SLOTS * scale.pages,
        page_tokens=scale.page,
        max_tokens=scale.tokens,
        max_window_rows=40,
        chunk_rows=scale.prompt // 2 if tiny else scale.prompt,
        recorded_rows=(16,) if tiny else RECORDED_ROWS,
        draft_max=scale.drafts,
        kv_type="f32" if tiny else "bf16",
        ngram_home="vram",
        layer_split=split,
        devices=devices,
        groups=groups,
        exact=tiny,
        plain=tiny,
    )
    if tiny:
        return load_device_model(read_spec(open_set(ORACLE)), plan, lambda sentence, percent: None)
    return _made_up(synthetic_spec(parse_shape(f"real:{scale.layers}"), draft=True), plan)


def _made_up(spec: ModelSpec, plan: LoadPlan) -> DeviceModel:
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
    """A conversation that is decoded greedily.

    Attributes:
        drafts: tokens to verify next; made up where none are grown, since no draft of such a model is ever right.
        most: of them.
        steps: that are grown.
    """

    slot: int
    most: int
    steps: int
    tokens: list[int] = field(default_factory=list)
    drafts: tuple[int, ...] = ()

    def span(self, model: StagedModel) -> Span:
        """Its next rows."""
        if not self.tokens:
            return Span(slot=self.slot, start=0, tokens=(10 * self.slot + 3,))
        tokens = (self.tokens[-1], *self.drafts)
        start = model.length(self.slot)
        return Span(slot=self.slot, start=start, tokens=tokens, draft_count=len(self.drafts))

    def take(self, span: Span, found: Stepped) -> None:
        """What they came to."""
        right = found.kept - (len(span.tokens) - span.draft_count)
        self.tokens += found.tokens[: right + 1]
        self.drafts = found.drafts[: self.most] if self.steps else tuple(range(1, 1 + self.most))


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Windows to be timed.

    Attributes:
        each: conversations of a window.
        groups: windows on their way at once.
        drafts: verified in each conversation's rows.
        steps: drafts grown after a window.
    """

    each: int
    groups: int = 1
    drafts: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Of windows of all groups, once they are under way.

    Attributes:
        interval_s: between two windows' ends.
        host_s, host_p99_s: of the host, from an answer seen to the next window sent.
        stage_s, handoff_s: of each stage, computing a window and passing it on; empty with one stage.
        idle: of each stage.
        texts: of each conversation.
    """

    interval_s: float
    host_s: float
    host_p99_s: float
    stage_s: tuple[float, ...]
    handoff_s: tuple[float, ...]
    idle: tuple[float, ...]
    texts: list[list[int]]


def open_slot(model: StagedModel, slot: int, pages: int) -> None:
    """With pages for the longest context."""
    model.open_slot(slot)
    model.set_pages(slot, range(slot * pages, (slot + 1) * pages))


def pace(model: StagedModel, scale: Scale, asked: Asked) -> Pace:
    """Times windows after a run that compiles and captures what they need."""
    if scale.warm:
        _decode(model, replace(scale, rounds=0), asked)
    before = model.stages
    found = _decode(model, scale, asked)
    pairs = list(zip(before, model.stages, strict=True))
    counts = [max(1, new.windows - old.windows) for old, new in pairs]
    spent = [new.busy_s + new.idle_s - old.busy_s - old.idle_s for old, new in pairs]
    return replace(
        found,
        stage_s=tuple((new.busy_s - old.busy_s) / count for (old, new), count in zip(pairs, counts, strict=True)),
        handoff_s=tuple(
            (new.handoff_s - old.handoff_s) / count for (old, new), count in zip(pairs, counts, strict=True)
        ),
        idle=tuple(
            (new.idle_s - old.idle_s) / max(1e-9, all_s) for (old, new), all_s in zip(pairs, spent, strict=True)
        ),
    )


def _decode(model: StagedModel, scale: Scale, asked: Asked) -> Pace:
    """Keeps a window of every group on its way; a window that only reads comes first."""
    groups, warm = asked.groups, scale.warm + 1
    chats = [Chat(slot, asked.drafts, asked.steps) for slot in range(asked.each * groups)]
    for chat in chats:
        open_slot(model, chat.slot, scale.pages)

    def submit(lane: int) -> tuple[list[Chat], Ticket]:
        some = chats[lane::groups]
        window = Window(tuple(chat.span(model) for chat in some))
        return some, model.submit(window, [Ask(draft_max=asked.steps)] * len(some), lane=lane)

    flying = deque(submit(lane) for lane in range(groups))
    intervals: list[float] = []
    host: list[float] = []
    before_s = time.perf_counter()
    for _ in range((warm + scale.rounds) * groups):
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
    steady = sorted(host[warm * groups :]) or [0.0]
    return Pace(
        interval_s=statistics.mean(intervals[warm * groups :] or [0.0]),
        host_s=statistics.median(steady),
        host_p99_s=steady[int(len(steady) * 0.99)],
        stage_s=(),
        handoff_s=(),
        idle=(),
        texts=[chat.tokens[:40] for chat in chats],
    )


def read(model: StagedModel, scale: Scale, parts: Sequence[int], *, groups: int) -> float:
    """Seconds until a prompt is read in chunks of these lengths, as many on their way as there are lanes for them."""
    ids = tuple((7 * place + 3) % 61 for place in range(sum(parts)))
    open_slot(model, 0, scale.pages)
    flying: deque[Ticket] = deque()
    lanes = range(groups, groups + model.reads) if model.reads else range(1)
    began_s, at = time.perf_counter(), 0
    for number, size in enumerate(parts):
        if len(flying) == len(lanes):
            model.collect(flying.popleft())
        last = at + size == len(ids)
        span = Span(slot=0, start=at, tokens=ids[at : at + size], logits_from=size - last)
        ask = Ask(draft_max=scale.drafts) if last else Ask(next_token=ids[at + size])
        flying.append(model.submit(Window((span,)), [ask], lane=lanes[number % len(lanes)]))
        at += size
    for ticket in flying:
        model.collect(ticket)
    return time.perf_counter() - began_s


def record_chunks(model: DeviceModel, sizes: Sequence[int], *, tokens: int) -> float:
    """Records chunks of these sizes for texts of up to `tokens`; seconds."""
    began_s = time.perf_counter()
    for shape in model.launcher.chunk_shapes():
        if shape.rows in sizes and shape.reach < 2 * tokens and model.launcher.missing(shape):
            model.launcher.prepare(shape)
    return time.perf_counter() - began_s


def read_alone(model: StagedModel, scale: Scale, parts: Sequence[int], *, groups: int) -> list[tuple[float, ...]]:
    """Seconds that each stage computed for every chunk of a prompt, with nothing else on its way."""
    ids = tuple((7 * place + 3) % 61 for place in range(sum(parts)))
    open_slot(model, 0, scale.pages)
    found, at = [], 0
    for size in parts:
        before = [stage.busy_s for stage in model.stages]
        last = at + size == len(ids)
        span = Span(slot=0, start=at, tokens=ids[at : at + size], logits_from=size - last)
        ask = Ask(draft_max=scale.drafts) if last else Ask(next_token=ids[at + size])
        model.collect(model.submit(Window((span,)), [ask], lane=groups if model.reads else 0))
        found.append(tuple(stage.busy_s - old for stage, old in zip(model.stages, before, strict=True)))
        at += size
    return found


def piped(times: Sequence[Sequence[float]]) -> float:
    """Seconds that chunks take on cards of their own, each after the chunk before and after the card before."""
    free = [0.0] * max((len(chunk) for chunk in times), default=0)
    for chunk in times:
        done = 0.0
        for stage, spent in enumerate(chunk):
            free[stage] = done = max(done, free[stage]) + spent
    return max(free, default=0.0)
