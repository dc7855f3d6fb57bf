"""Times whole windows of a synthetic model: one graph replay each, at a given context, by rows."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import torch

from appliance.bench.bytes import draft_bytes_read, uniform, window_bytes_read
from appliance.bench.routing import Histogram, RoutingCounter
from appliance.bench.synthetic import SyntheticShape, SyntheticSource, synthetic_spec
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.loading import build_stages, give_stores
from appliance.model.qwen4exp.device.model import DeviceModel
from appliance.model.qwen4exp.device.ngram import ngram_table
from appliance.model.qwen4exp.device.shapes import StepShape
from appliance.model.qwen4exp.device.stage import Common
from appliance.model.qwen4exp.device.tables import bucket_of
from appliance.model.qwen4exp.device.work import Draws
from appliance.model.qwen4exp.prompt_footprint import recorded_rows
from kernels.rows import SpanPlan

REPEATS = 20
WARM = 5
PAGE_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTime:
    """One line of the table.

    Attributes:
        rows: of the window.
        sequences: slots they belong to.
        drafts: steps of the draft chain after it.
        milliseconds: median from launch to the answer on the host.
        device_milliseconds: the same between events on the device.
        experts: of a layer that such a window touched, on average over the layers.
        gigabytes: weights and state that the window reads, each of those experts once.
        limit_milliseconds: those bytes over the bandwidth measured in this run.
        share: limit over time.
        hit_share: of the routed experts of these windows found on the card.
    """

    rows: int
    sequences: int
    drafts: int
    milliseconds: float
    device_milliseconds: float
    experts: float
    gigabytes: float
    limit_milliseconds: float
    share: float
    hit_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is asked.

    Attributes:
        shape: of the model.
        rows: windows to time.
        context: tokens before each window.
        hit_share: of the routed experts that the card holds.
        draft: with the draft layer.
        kv_type: storage of keys and values.
        plain: without graphs.
        routing: how often which expert is chosen; None for all alike.
        chunk_rows: of the longest prompt chunk; 0 where no prompts are read.
    """

    shape: SyntheticShape
    rows: Sequence[int]
    context: int
    hit_share: float
    draft: bool
    kv_type: str
    plain: bool
    routing: Histogram | None = None
    chunk_rows: int = 0
    device: str = "cuda:0"


def load(bench: Bench) -> DeviceModel:
    """The model, with all slots that the largest window needs."""
    spec = synthetic_spec(bench.shape, draft=bench.draft)
    slots = max(bench.rows)
    tokens = bench.context + 64
    pages = -(-(tokens + 8) // PAGE_TOKENS)
    plan = LoadPlan(
        device=bench.device,
        slots=slots,
        pages=slots * pages,
        page_tokens=PAGE_TOKENS,
        max_tokens=tokens,
        max_window_rows=40,
        chunk_rows=bench.chunk_rows,
        recorded_rows=recorded_rows(bench.chunk_rows),
        draft_max=4 if bench.draft else 0,
        kv_type=bench.kv_type,
        plain=bench.plain,
        expert_pool_bytes=None,
    )
    device = torch.device(bench.device)
    source = SyntheticSource(spec.tensors, device, bench.routing)
    pdl = torch.cuda.get_device_capability(device) >= (9, 0)
    parts = build_stages(Common(spec=spec, plan=plan, pdl=pdl), [source], draft=bench.draft)
    share = None if bench.hit_share >= 1.0 else bench.hit_share
    for store in give_stores(parts, spec, plan, hit_share=share):
        store.fill(source.expert_words())
    for stage in parts.stages:
        if stage.has_ngram:
            stage.give_ngrams(ngram_table(source, spec, home="vram"))
    model = DeviceModel(spec, plan, parts)
    model.launcher.warm_prompts()
    return model


def _warp_to(model: DeviceModel, context: int) -> None:
    """Every slot stands at `context` tokens, over whatever its pages hold."""
    plan = model.plan
    pages = plan.pages // plan.slots
    for slot in range(plan.slots):
        model.open_slot(slot)
        model.set_pages(slot, [plan.slots * page + slot for page in range(pages)])
        model.slots.lengths[slot] = context
    for stage in model.parts.stages:
        stage.slots.length.fill_(context)
        for delta in stage.state.delta:
            delta.at.fill_(context)
        # Zeros would be ties, which selection meets more slowly than keys of a text.
        pools = (*stage.state.pools, *([stage.state.draft_pool] if stage.state.draft_pool is not None else []))
        for tensor in (*stage.state.pooled, *(one for pool in pools for one in (pool.keys, pool.values))):
            tensor.random_(-100, 100) if tensor.dtype == torch.int8 else tensor.normal_()
        for pool in pools:
            for scales in (pool.key_scales, pool.value_scales):
                if scales is not None:
                    scales.fill_(0.01)


@torch.inference_mode()
def time_windows(model: DeviceModel, bench: Bench, *, gbps: float) -> Iterator[WindowTime]:
    """A line for each number of rows, one sequence a row; and with drafts, chains after windows of five rows."""
    _warp_to(model, bench.context)
    for rows in bench.rows:
        yield _time(model, bench, gbps=gbps, rows=rows, per_sequence=1, steps=0)
    if bench.draft:
        for sequences in (1, 2, 4):
            if sequences * 5 <= 40 and sequences <= model.plan.slots:
                rows = sequences * 5
                yield _time(model, bench, gbps=gbps, rows=rows, per_sequence=5, steps=4)


def _time(model: DeviceModel, bench: Bench, *, gbps: float, rows: int, per_sequence: int, steps: int) -> WindowTime:
    sequences = rows // per_sequence
    spans = _spans(bench, rows=rows, per_sequence=per_sequence)
    bucket = bucket_of(rows)
    draws = Draws(wide=False, greedy=True)
    shape = StepShape(rows=bucket, spans=bucket_of(sequences), steps=steps, draws=draws)
    counter = RoutingCounter(model)
    touched = 0.0
    walls: list[float] = []
    events: list[float] = []
    for number in range(WARM + REPEATS):
        for stage in model.parts.stages:
            for delta in stage.state.delta:
                delta.at.fill_(bench.context)
        alone = RoutingCounter(model) if number == WARM - 1 else None
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        began = time.perf_counter()
        before.record()
        model.launcher.submit(shape, spans)
        found = model.launcher.collect(bucket)
        after.record()
        wall = time.perf_counter() - began
        torch.cuda.synchronize()
        if number == 0 and wall > 1.0:
            print(f"windows of {rows} rows: kernels compiled in {wall:.0f} s", file=sys.stderr, flush=True)
        if alone is not None:
            touched = alone.touched()
        if number >= WARM:
            walls.append(wall * 1e3)
            events.append(before.elapsed_time(after))
    if any(found.bad[:rows]):
        raise RuntimeError(f"windows of {rows} rows computed logits that are not numbers; times of those mean nothing")
    milliseconds = statistics.median(walls)
    size = _bytes(model, bench, rows=rows, sequences=sequences, steps=steps, touched=touched)
    limit = size / gbps / 1e6
    return WindowTime(
        rows=rows,
        sequences=sequences,
        drafts=steps,
        milliseconds=milliseconds,
        device_milliseconds=statistics.median(events),
        experts=touched,
        gigabytes=size / 1e9,
        limit_milliseconds=limit,
        share=limit / milliseconds,
        hit_share=counter.hit_share(),
    )


def _spans(bench: Bench, *, rows: int, per_sequence: int) -> list[SpanPlan]:
    """Random tokens at the context's end, the first of each sequence certain and the others its drafts."""
    generator = torch.Generator().manual_seed(rows)
    tokens = torch.randint(0, 200000, (rows,), generator=generator).tolist()
    return [
        SpanPlan(
            slot=slot,
            rows=per_sequence,
            tokens=tuple(tokens[slot * per_sequence : (slot + 1) * per_sequence]),
            start=bench.context,
            certain=1,
        )
        for slot in range(rows // per_sequence)
    ]


def _bytes(model: DeviceModel, bench: Bench, *, rows: int, sequences: int, steps: int, touched: float) -> int:
    """With the experts that the trunk did touch; the draft layer's passes are taken as routing says."""
    spec, context, kv_type = model.spec, bench.context, bench.kv_type
    size = window_bytes_read(
        spec, context=context, kv_type=kv_type, rows=rows, sequences=sequences, distinct=lambda _: touched
    )
    if model.can_draft:
        distinct = uniform(spec) if bench.routing is None else bench.routing.distinct
        size += draft_bytes_read(
            spec, context=context, kv_type=kv_type, rows=rows, sequences=sequences, steps=steps, distinct=distinct
        )
    return size


def as_json(lines: Sequence[WindowTime]) -> list[dict[str, float]]:
    """For `--json`."""
    return [asdict(line) for line in lines]
