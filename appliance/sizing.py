"""Owns the arithmetic of one placement: every part in bytes for a given context, parallel and unpacking."""

from __future__ import annotations

import math
from dataclasses import dataclass

from appliance.card_sizing import HOST_RUNTIME_BYTES, STAGING_BYTES, card_sizes
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device_footprint import RING, WINDOW_ROWS
from appliance.model.qwen4exp.footprint import (
    ngram_bytes,
    slot_bytes,
    unpack_bytes,
    weight_bytes,
    window_bytes,
)
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.rig.cards import Card
from appliance.rig.judge import Device
from appliance.rig.machine import Machine
from appliance.rig.schema import Rig
from appliance.rig.size import GIB, MIB, format_size

# Interpreter, torch, tokenizer and server of this process, measured after a start without weights.
RUNTIME_BYTES = 420 * MIB
# What stays free for peaks nobody counted: a share of the budget, within bounds.
HEADROOM_SHARE = 0.04
HEADROOM_LEAST, HEADROOM_MOST = 64 * MIB, 2 * GIB

PAGE_TOKENS = 64
# A window of prompt shares its time with everybody's decode rows: more rows only where more cores compute them.
PROMPT_CHUNK, PROMPT_CHUNK_MANY_CORES, MANY_CORES = 256, 512, 8


@dataclass(frozen=True, slots=True)
class Item:
    """A part of the placement.

    Attributes:
        name: what it is.
        size_bytes: how large.
        note: how it came about.
    """

    name: str
    size_bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What is allocated, where and how large.

    Attributes:
        items: every part in RAM; their sum is `total_bytes`.
        budget_bytes: of RAM that this process may use.
        card_items: every part on the card; empty on the CPU.
        card_budget_bytes: what the card has for this process.
        max_rows, span_rows: rows of the largest window, and of one conversation in it; None where nothing bounds them.
        expert_pool_bytes: of the card for routed experts; None on the CPU.
        plain: every launch by itself, without graphs.
        notes: sentences for whoever reads the plan.
        Others: see LoadPlan and EngineConfig.
    """

    device: str
    items: tuple[Item, ...]
    budget_bytes: int
    parallel: int
    max_tokens: int
    page_tokens: int
    pages: int
    prompt_chunk: int
    draft_max: int
    draft_min_p: float
    batch_mtp: bool
    queue: int
    unpack: str
    ngram_home: str
    kv_type: str
    notes: tuple[str, ...] = ()
    card_items: tuple[Item, ...] = ()
    card_budget_bytes: int = 0
    max_rows: int | None = None
    span_rows: int | None = None
    expert_pool_bytes: int | None = None
    plain: bool = False

    @property
    def card_free_bytes(self) -> int:
        """Budget of the card that is left; negative when it does not fit."""
        return self.card_budget_bytes - sum(item.size_bytes for item in self.card_items)

    @property
    def fits(self) -> bool:
        """Whether RAM and card hold it."""
        return self.free_bytes >= 0 and self.card_free_bytes >= 0

    @property
    def total_bytes(self) -> int:
        """All parts in RAM together."""
        return sum(item.size_bytes for item in self.items)

    @property
    def free_bytes(self) -> int:
        """Budget that is left; negative when it does not fit."""
        return self.budget_bytes - self.total_bytes

    @property
    def model_bytes(self) -> int:
        """Parts that loading allocates: what is compared with the measured growth afterwards."""
        return sum(item.size_bytes for item in self.items if item.name not in ("runtime", "buffers", "headroom"))

    @property
    def window_rows(self) -> int:
        """Rows of the longest window: a prompt chunk beside every slot with all its drafts."""
        rows = self.parallel * (1 + self.draft_max) + self.prompt_chunk
        return rows if self.max_rows is None else min(rows, self.max_rows)

    def load_plan(self) -> LoadPlan:
        """What the model is told."""
        return LoadPlan(
            device=self.device,
            slots=self.parallel,
            pages=self.pages,
            page_tokens=self.page_tokens,
            max_tokens=self.max_tokens,
            max_window_rows=self.window_rows,
            draft_max=self.draft_max,
            ngram_home=self.ngram_home,
            unpack=self.unpack,
            kv_type=self.kv_type,
            expert_pool_bytes=self.expert_pool_bytes,
            plain=self.plain,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a placement may vary."""

    tokens: int
    parallel: int
    unpack: str
    home: str


def size_up(shape: Shape, *, machine: Machine, spec: ModelSpec, rig: Rig, device: Device) -> Placement:
    """Prices one shape; it may not fit."""
    if device.card is not None:
        return _size_up_card(shape, device.card, machine=machine, spec=spec, rig=rig, device=device)
    draft_max = rig.serving.draft_max if spec.has_draft else 0
    tokens, parallel = shape.tokens, shape.parallel
    draft = draft_max > 0
    page_tokens = _page_tokens(spec)
    slot_pages = math.ceil(tokens / page_tokens)
    pages = parallel * slot_pages
    chunk = _prompt_chunk(machine, rig)
    slot = slot_bytes(spec, page_tokens=page_tokens, draft=draft)
    rows = parallel * (1 + draft_max)
    budget = machine.ram.budget_bytes
    each = f"{format_size(slot.fixed + slot_pages * slot.page)} a slot with its states"
    peak = max(
        window_bytes(spec, rows=rows + chunk, logit_rows=rows, slots=parallel, tokens=tokens),
        unpack_bytes(spec, unpack=shape.unpack, draft=draft),
    )
    items = [
        Item("weights", weight_bytes(spec, unpack=shape.unpack, draft=draft), _unpack_note(shape.unpack)),
        Item("n-gram table", ngram_bytes(spec) if shape.home == "ram" else 0, f"home {shape.home}"),
        Item("recurrent states", parallel * slot.fixed, f"{parallel} slots"),
        Item("KV pages", (pages + 1) * slot.page, f"{parallel} slots of {tokens} tokens, {each}"),
        Item("buffers", peak, f"a window of {rows + chunk} rows, or one layer being unpacked"),
        Item("runtime", RUNTIME_BYTES, "interpreter, torch, tokenizer, server"),
        Item("headroom", int(min(max(budget * HEADROOM_SHARE, HEADROOM_LEAST), HEADROOM_MOST))),
    ]
    return Placement(
        device=device.name,
        items=tuple(items),
        budget_bytes=budget,
        parallel=parallel,
        max_tokens=tokens,
        page_tokens=page_tokens,
        pages=pages,
        prompt_chunk=chunk,
        draft_max=draft_max,
        draft_min_p=0.0 if rig.serving.draft_min_p == "auto" else rig.serving.draft_min_p,
        batch_mtp=rig.serving.batch_mtp,
        queue=rig.serving.queue,
        unpack=shape.unpack,
        ngram_home=shape.home,
        kv_type="f32",
        notes=_notes(spec, rig, device),
    )


def _size_up_card(
    shape: Shape, card: Card, *, machine: Machine, spec: ModelSpec, rig: Rig, device: Device
) -> Placement:
    draft_max = rig.serving.draft_max if spec.has_draft else 0
    page_tokens = _page_tokens(spec)
    pages = shape.parallel * math.ceil(shape.tokens / page_tokens)
    sizes = card_sizes(
        spec,
        rig,
        card,
        tokens=shape.tokens,
        slots=shape.parallel,
        pages=pages,
        page_tokens=page_tokens,
        draft=draft_max > 0,
        home=shape.home,
    )
    budget = machine.ram.budget_bytes
    headroom = int(min(max(budget * HEADROOM_SHARE, HEADROOM_LEAST), HEADROOM_MOST))
    table = ngram_bytes(spec) if shape.home == "ram" else 0
    return Placement(
        device=device.name,
        items=(
            Item("experts", sizes.host_experts, "pinned, read over PCIe"),
            Item("n-gram table", table, f"home {shape.home}"),
            Item("buffers", STAGING_BYTES, "weights on their way to the card"),
            Item("runtime", RUNTIME_BYTES + HOST_RUNTIME_BYTES, "interpreter, torch, CUDA, tokenizer, server"),
            Item("headroom", headroom),
        ),
        budget_bytes=budget,
        parallel=shape.parallel,
        max_tokens=shape.tokens,
        page_tokens=page_tokens,
        pages=pages,
        prompt_chunk=WINDOW_ROWS,
        draft_max=draft_max,
        draft_min_p=0.0 if rig.serving.draft_min_p == "auto" else rig.serving.draft_min_p,
        batch_mtp=rig.serving.batch_mtp,
        queue=rig.serving.queue,
        unpack="planes",
        ngram_home=shape.home,
        kv_type=sizes.kv_type,
        notes=_notes(spec, rig, device),
        card_items=tuple(Item(*line) for line in sizes.lines()),
        card_budget_bytes=sizes.budget,
        max_rows=WINDOW_ROWS,
        # What the ring of raw indexer keys can tell apart.
        span_rows=RING - spec.block_tokens + 1,
        expert_pool_bytes=sizes.experts,
        plain=rig.engine.plain,
    )


def _page_tokens(spec: ModelSpec) -> int:
    """A page holds whole indexer blocks."""
    return math.ceil(PAGE_TOKENS / spec.block_tokens) * spec.block_tokens


def _prompt_chunk(machine: Machine, rig: Rig) -> int:
    if rig.serving.prompt_chunk != "auto":
        return rig.serving.prompt_chunk
    return PROMPT_CHUNK_MANY_CORES if machine.cores.usable >= MANY_CORES else PROMPT_CHUNK


def _unpack_note(unpack: str) -> str:
    return "unpacked once to float32" if unpack == "once" else "as stored, unpacked at each use"


def _notes(spec: ModelSpec, rig: Rig, device: Device) -> tuple[str, ...]:
    notes = [device.note] if device.note else []
    if spec.draft_note and rig.serving.draft_max > 0:
        notes.append(f"no drafts: {spec.draft_note}")
    return (*notes, *spec.warnings)
