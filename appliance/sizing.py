"""Owns the arithmetic of one placement on the CPU: every part in bytes for a given context, parallel and unpacking."""

from __future__ import annotations

import math

from appliance.model.qwen4exp.footprint import (
    ngram_bytes,
    slot_bytes,
    unpack_bytes,
    weight_bytes,
    window_bytes,
)
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.placed import Item, Placement, Shape
from appliance.rig.judge import Device
from appliance.rig.machine import Machine
from appliance.rig.schema import Rig
from appliance.rig.size import GIB, MIB, format_size

# Interpreter, torch, tokenizer and server of this process, measured after a start without weights; and what the
# compiler of the CPU's kernels keeps after it ran, at the first start.
RUNTIME_BYTES = (420 + 210) * MIB
# What stays free for peaks nobody counted: a share of the budget, within bounds.
HEADROOM_SHARE = 0.04
HEADROOM_LEAST, HEADROOM_MOST = 64 * MIB, 2 * GIB

PAGE_TOKENS = 64
# A window of prompt shares its time with everybody's decode rows: more rows only where more cores compute them.
PROMPT_CHUNK, PROMPT_CHUNK_MANY_CORES, MANY_CORES = 256, 512, 8


def size_up(shape: Shape, *, machine: Machine, spec: ModelSpec, rig: Rig, device: Device) -> Placement:
    """Prices one shape; it may not fit."""
    draft_max = rig.serving.draft_max if spec.has_draft else 0
    tokens, parallel = shape.tokens, shape.parallel
    draft = draft_max > 0
    page_tokens = page_size(spec)
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
        Item("headroom", headroom_bytes(budget)),
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
        draft_min_p=draft_min_p(rig),
        batch_mtp=rig.serving.batch_mtp,
        queue=rig.serving.queue,
        unpack=shape.unpack,
        ngram_home=shape.home,
        kv_type="f32",
        notes=notes(spec, rig, device),
    )


def page_size(spec: ModelSpec) -> int:
    """Tokens of a page, which holds whole indexer blocks."""
    return math.ceil(PAGE_TOKENS / spec.block_tokens) * spec.block_tokens


def headroom_bytes(budget_bytes: int) -> int:
    """What stays free of the RAM that this process may use."""
    return int(min(max(budget_bytes * HEADROOM_SHARE, HEADROOM_LEAST), HEADROOM_MOST))


def draft_min_p(rig: Rig) -> float:
    """The drafter's confidence below which a draft ends."""
    return 0.0 if rig.serving.draft_min_p == "auto" else rig.serving.draft_min_p


def notes(spec: ModelSpec, rig: Rig, device: Device) -> tuple[str, ...]:
    """Sentences on what computes, and on what the model lacks."""
    found = [device.note] if device.note else []
    if spec.draft_note and rig.serving.draft_max > 0:
        found.append(f"no drafts: {spec.draft_note}")
    return (*found, *spec.warnings)


def _prompt_chunk(machine: Machine, rig: Rig) -> int:
    if rig.serving.prompt_chunk != "auto":
        return rig.serving.prompt_chunk
    return PROMPT_CHUNK_MANY_CORES if machine.cores.usable >= MANY_CORES else PROMPT_CHUNK


def _unpack_note(unpack: str) -> str:
    return "taken apart once: int8 codes and float32 scales" if unpack == "once" else "as stored, unpacked at each use"
