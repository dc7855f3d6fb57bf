"""Owns the arithmetic of one card: what its layers, conversations and buffers take, and what is left for experts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from appliance.model.qwen4exp.device_footprint import SWAP_MOVES, WINDOW_ROWS
from appliance.model.qwen4exp.handoff_footprint import landing_bytes as window_landing_bytes
from appliance.model.qwen4exp.handoff_footprint import leaving_bytes
from appliance.model.qwen4exp.loading_footprint import packing_bytes
from appliance.model.qwen4exp.prompt_footprint import chunk_bytes, graph_bytes, kept_bytes, landing_bytes, room_bytes
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.stage_footprint import ModelBytes
from appliance.model.qwen4exp.window_footprint import WindowAsk, buffer_bytes
from appliance.placed import Item
from appliance.rig.schema import Rig
from appliance.rig.size import GIB, MIB, format_size

# CUDA context, compiled kernels and graphs, measured beside a model.
CARD_RUNTIME_BYTES = 900 * MIB
# Driver and runtime in this process's RAM.
HOST_RUNTIME_BYTES = GIB
SHORT_CONTEXT = 8192
RULE_BYTES = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class CardAsk:
    """What all cards of a placement have in common.

    Attributes:
        tokens: context of one conversation.
        slots: conversations held at once.
        pages: KV pages in all.
        home: of the n-gram table.
        kv_type: storage of keys and values.
        chunk_rows: of the longest prompt chunk; 0: prompts go through windows.
        recorded_rows: of the longest that is recorded; 0: none is.
        stages, groups: of the layers, and of conversations whose windows follow each other through them.
    """

    tokens: int
    slots: int
    pages: int
    home: str
    kv_type: str
    chunk_rows: int
    recorded_rows: int = 0
    stages: int = 1
    groups: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSizes:
    """Parts of one card in bytes.

    Attributes:
        dense, states, pages, buffers, rules, ngram, runtime: on the card.
        prompts: on the card while a prompt chunk runs.
        handoff: what comes from the card before and goes to the next one.
        experts: on the card: what is left of the budget, at most those of its layers.
        all_experts: of its layers, as the card would hold them.
        budget: what the card has for this process.
        kv_type: storage of keys and values.
        host_experts: of its layers, in RAM.
    """

    dense: int
    states: int
    pages: int
    buffers: int
    rules: int
    ngram: int
    runtime: int
    prompts: int
    handoff: int
    experts: int
    all_experts: int
    budget: int
    kv_type: str
    host_experts: int

    @property
    def short(self) -> int:
        """What the card lacks; 0 when it fits."""
        fixed = self.dense + self.states + self.pages + self.buffers + self.rules + self.ngram + self.runtime
        return max(0, fixed + self.prompts + self.handoff + self.experts - self.budget)

    @property
    def cached(self) -> float:
        """Share of its layers' experts on the card."""
        return self.experts / self.all_experts if self.all_experts else 1.0

    def items(self) -> tuple[Item, ...]:
        """Every part on the card."""
        passing = (
            (Item("card: hand-off", self.handoff, "windows and chunks from card to card"),) if self.handoff else ()
        )
        return (
            Item("card: weights", self.dense, "in planes, embedding as stored"),
            Item("card: experts", self.experts, f"{self.cached:.1%} of {format_size(self.all_experts)}"),
            Item("card: states", self.states, "recurrent states of all slots"),
            Item("card: KV pages", self.pages, self.kv_type),
            Item("card: n-gram table", self.ngram),
            Item("card: buffers", self.buffers + self.rules, f"windows of up to {WINDOW_ROWS} rows, sampling rules"),
            Item("card: prompts", self.prompts, "rows of a prompt while they are read"),
            *passing,
            Item("card: runtime", self.runtime, "CUDA, kernels, graphs"),
        )


def kv_type(rig: Rig, *, tokens: int) -> str:
    """Storage of keys and values on a card."""
    if rig.context.kv != "auto":
        return rig.context.kv
    return "bf16" if tokens <= SHORT_CONTEXT else "int8"


def card_sizes(
    spec: ModelSpec, model: ModelBytes, layers: range, ask: CardAsk, *, budget: int, cache: int | None
) -> CardSizes:
    """Prices some layers on a card.

    Args:
        spec: the model.
        model: the same, layer by layer.
        layers: of the card.
        ask: what the cards have in common.
        budget: what this one has for the process.
        cache: for its experts, as the rig states it; None: all that is left.
    """
    found, last = model.stage(layers), layers.stop == model.layers
    prompts = chunk_bytes(spec, rows=ask.chunk_rows, tokens=ask.tokens) if ask.chunk_rows else 0
    prompts += graph_bytes(spec, rows=ask.recorded_rows, tokens=ask.tokens)
    windows = WindowAsk(
        tokens=ask.tokens,
        slots=ask.slots,
        head=last,
        drafts=last and model.drafts,
        ngram=model.ngram_layer in layers,
    )
    sizes = {
        "dense": found.dense,
        "states": (ask.slots + 1) * found.fixed,
        "pages": (ask.pages + 1) * found.page,
        "buffers": buffer_bytes(spec, windows) + kept_bytes(spec, rows=ask.recorded_rows),
        "prompts": prompts,
        "handoff": _handoff_bytes(spec, ask, first=layers.start == 0, last=last),
        "rules": (ask.slots + 1) * spec.vocabulary * RULE_BYTES if last else 0,
        "ngram": found.ngram if ask.home == "vram" else 0,
        "runtime": CARD_RUNTIME_BYTES,
    }
    every, left = sum(found.experts), budget - sum(sizes.values())
    largest = max(found.host_experts, default=0) // spec.experts
    moving = _moving_bytes(spec, every=every, largest=largest, left=left, cache=cache, chunks=ask.chunk_rows > 0)
    # Weights are packed before there are windows and prompts, in the memory that these have later.
    packing = packing_bytes(spec, draft=model.drafts) - sizes["buffers"] - prompts
    late = max(moving, packing)
    sizes["buffers"] += late
    left -= late
    pool = max(0, min(every, left)) if cache is None else min(every, cache)
    share = pool / every if every else 1.0
    return CardSizes(
        **sizes,
        experts=pool,
        all_experts=every,
        budget=budget,
        kv_type=ask.kv_type,
        host_experts=math.ceil(sum(found.host_experts) * (1.0 - share)),
    )


def _handoff_bytes(spec: ModelSpec, ask: CardAsk, *, first: bool, last: bool) -> int:
    """Places where windows of the card before land, and chunks that are on their way to the next one."""
    landing = 0 if first else window_landing_bytes(spec, stages=ask.stages, groups=ask.groups)
    return landing + (0 if last else leaving_bytes(spec, rows=ask.chunk_rows, stages=ask.stages))


def _moving_bytes(spec: ModelSpec, *, every: int, largest: int, left: int, cache: int | None, chunks: bool) -> int:
    """Room for what comes to the card for a while: experts that change places, and matrices and experts of a chunk.

    Args:
        spec: the model.
        every: bytes of all experts of the card's layers.
        largest: of them, as RAM holds it.
        left: of the card, for experts and this.
        cache: for its experts, as the rig states it; None: all that is left.
        chunks: whether prompts are read in chunks.
    """
    held = SWAP_MOVES * largest if (left if cache is None else cache) < every else 0
    if not chunks:
        return held
    held += room_bytes(spec)
    pool = left - held if cache is None else min(every, cache)
    if pool < every:
        # As if none of the bytes that the landing places take held experts either.
        most = landing_bytes(experts=spec.experts, expert_bytes=largest)
        missing = math.ceil(spec.experts * min(1.0, 1.0 - (pool - most) / every))
        held += landing_bytes(experts=missing, expert_bytes=largest)
    return held
