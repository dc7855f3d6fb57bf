"""Owns the sketch of a plan over any number of cards: every part in bytes, before a file is here or a card is free.

`appliance.placement` decides what the engine allocates; the sketch prices what it does not place yet (several cards,
a catalogue entry that is not downloaded) with the same arithmetic of parts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.errors import DoesNotFitError
from appliance.model.qwen4exp.device_footprint import WINDOW_ROWS, dense_bytes, expert_bytes, slot_bytes
from appliance.model.qwen4exp.footprint import FLOAT, NGRAM_TABLE, ngram_bytes
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.rig.cards import Card
from appliance.rig.machine import Machine
from appliance.rig.size import GIB, MIB, format_size

PAGE_TOKENS = 64
CONTEXT_BYTES = 450 * MIB  # what the CUDA driver and the kernels' code take on a card
HOST_BYTES = 2 * GIB  # interpreter, torch, CUDA's own on the host, tokenizer, server
STAGING_BYTES = 512 * MIB  # pinned, on the way from file to card
HEADROOM_SHARE = 0.04
LEAST_CACHE_SHARE = 0.03  # of a card's experts; below it nothing is gained from a card


@dataclass(frozen=True, slots=True)
class Part:
    """A named number of bytes."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One card's memory.

    Attributes:
        card: whose.
        layers: first and one past the last that it computes.
        parts: dense, slots, KV, buffers, cache, reserve, and what others hold; together all its memory.
    """

    card: Card
    layers: tuple[int, int]
    parts: tuple[Part, ...]

    def size(self, name: str) -> int:
        """Bytes of a part."""
        return sum(part.size_bytes for part in self.parts if part.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a sketch is asked for; see the keys of rig.toml."""

    parallel: int
    max_tokens: int
    kv: str
    ngram_home: str
    draft: bool
    prompt_chunk: int
    reserve_bytes: int
    layer_split: tuple[int, ...] | None = None
    cache_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """A priced plan.

    Attributes:
        bars: one for each card, in stage order.
        ram: parts in RAM.
        ram_budget_bytes: what this process may use.
        slot_bytes: one conversation at its full context.
    """

    wish: Wish
    bars: tuple[Bar, ...]
    ram: tuple[Part, ...]
    ram_budget_bytes: int
    slot_bytes: int

    @property
    def cache_bytes(self) -> int:
        """Experts in VRAM, all cards."""
        return sum(bar.size("cache") for bar in self.bars)

    @property
    def ram_bytes(self) -> int:
        """All parts in RAM."""
        return sum(part.size_bytes for part in self.ram)


def price_of_slot(spec: ModelSpec, *, tokens: int, kv: str, draft: bool) -> int:
    """Bytes of one conversation at a context: states, histories, KV pages, indexer keys, the drafter's KV."""
    page_tokens = _page_tokens(spec)
    slot = slot_bytes(spec, page_tokens=page_tokens, kv_type=kv, draft=draft)
    return slot.fixed + math.ceil(tokens / page_tokens) * slot.page


def sketch(machine: Machine, spec: ModelSpec, cards: Sequence[Card], wish: Wish) -> Sketch:
    """Prices a wish on these cards.

    Raises:
        DoesNotFitError: with the numbers: which card or the RAM, needed, allowed, short, and what would help.
    """
    if not cards:
        raise DoesNotFitError("there is no card to plan for", hint="the built-in model runs on the CPU")
    budgets = [(card.free_bytes if card.free_bytes is not None else card.vram_bytes or 0) for card in cards]
    split = wish.layer_split or auto_split(budgets, spec.trunk_layers)
    bounds = tuple(itertools.pairwise((0, *split, spec.trunk_layers)))
    experts = expert_bytes(spec, draft=wish.draft)
    bars, cached = [], 0
    for number, (card, budget, layers) in enumerate(zip(cards, budgets, bounds, strict=True)):
        last = number == len(cards) - 1
        mine = experts.layers[layers[0] : layers[1]] + (experts.layers[spec.trunk_layers :] if last else ())
        bar = _bar(spec, card, budget, layers, wish, last=last, own_experts=sum(mine) * experts.count)
        bars.append(bar)
        cached += bar.size("cache")
    budget = machine.ram.budget_bytes
    ram = (
        Part("experts", max(0, experts.total - cached)),
        Part("n-gram table", ngram_bytes(spec) if wish.ngram_home == "ram" else 0),
        Part("staging", STAGING_BYTES),
        Part("runtime", HOST_BYTES),
        Part("headroom", int(budget * HEADROOM_SHARE)),
    )
    found = Sketch(
        wish=wish,
        bars=tuple(bars),
        ram=ram,
        ram_budget_bytes=budget,
        slot_bytes=price_of_slot(spec, tokens=wish.max_tokens, kv=wish.kv, draft=wish.draft),
    )
    if found.ram_bytes > budget:
        parts = ", ".join(f"{part.name} {format_size(part.size_bytes)}" for part in ram if part.size_bytes)
        limit = f" (limit in {machine.ram.limit_source})" if machine.ram.limit_source else ""
        raise DoesNotFitError(
            f"RAM: {format_size(found.ram_bytes)} are needed and {format_size(budget)} may be used{limit}: "
            f"{format_size(found.ram_bytes - budget)} short; {parts}",
            hint="a smaller size of the model, or more RAM",
        )
    return found


def auto_split(budgets: Sequence[int], layers: int) -> tuple[int, ...]:
    """First layer of each later card, in proportion to what is free on each, at least one layer each."""
    split: list[int] = []
    total, before = sum(budgets) or 1, 0
    for number, budget in enumerate(budgets[:-1]):
        before += budget
        least = (split[-1] if split else 0) + 1
        most = layers - (len(budgets) - 1 - number)
        split.append(min(max(round(layers * before / total), least), most))
    return tuple(split)


def _bar(
    spec: ModelSpec, card: Card, budget: int, layers: tuple[int, int], wish: Wish, *, last: bool, own_experts: int
) -> Bar:
    share = (layers[1] - layers[0]) / spec.trunk_layers
    page_tokens = _page_tokens(spec)
    slot = slot_bytes(spec, page_tokens=page_tokens, kv_type=wish.kv, draft=wish.draft)
    pages = wish.parallel * math.ceil(wish.max_tokens / page_tokens) + 1
    parts = {
        "dense": _dense(spec, layers, first=layers[0] == 0, last=last, draft=wish.draft),
        "slots": int((wish.parallel + 1) * slot.fixed * share),
        "KV": int(pages * slot.page * share),
        "buffers": CONTEXT_BYTES + _window(spec, wish, last=last),
        "reserve": wish.reserve_bytes,
    }
    left = budget - sum(parts.values())
    wanted = own_experts if wish.cache_bytes is None else min(own_experts, int(wish.cache_bytes * share))
    least = int(own_experts * LEAST_CACHE_SHARE)
    if left < max(least, wanted if wish.cache_bytes is not None else 0):
        listed = ", ".join(f"{name} {format_size(size)}" for name, size in parts.items())
        need = sum(parts.values()) + max(least, wanted if wish.cache_bytes is not None else 0)
        raise DoesNotFitError(
            f"card {card.index} ({card.name}): {format_size(need)} are needed and {format_size(budget)} are free: "
            f"{format_size(need - budget)} short; {listed}",
            hint=_help(wish, card),
        )
    parts["cache"] = min(wanted, left)
    total = card.vram_bytes or budget
    held = max(0, total - budget)
    parts["others"] = held
    parts["free"] = max(0, total - sum(parts.values()))
    return Bar(card=card, layers=layers, parts=tuple(Part(name, size) for name, size in parts.items()))


def _help(wish: Wish, card: Card) -> str:
    options = ["fewer conversations or a shorter context"]
    if wish.draft:
        options.append("draft_max = 0 leaves the drafter out")
    if card.processes:
        options.append(f"end process {card.processes[0].pid}, which holds its memory")
    return ", or ".join(options)


def _dense(spec: ModelSpec, layers: tuple[int, int], *, first: bool, last: bool, draft: bool) -> int:
    """A card's part of the dense weights: its layers; the embedding on the first, head and drafter on the last."""
    stored = {name: t.byte_count for name, t in spec.tensors.items() if "_exps." not in name and name != NGRAM_TABLE}
    drafter = f"blk.{spec.trunk_layers}."
    everything = sum(size for name, size in stored.items() if draft or not name.startswith(drafter))
    mine = 0
    for name, size in stored.items():
        if name.startswith(drafter):
            mine += size if last and draft else 0
        elif name.startswith("blk."):
            mine += size if layers[0] <= int(name.split(".")[1]) < layers[1] else 0
        else:
            mine += size if (first if name.startswith("token_embd") else last) else 0
    return int(dense_bytes(spec, draft=draft) * mine / max(everything, 1))


def _window(spec: ModelSpec, wish: Wish, *, last: bool) -> int:
    """Activations of a prompt chunk, and the logits of a decode window where the head is."""
    widest = max(spec.gdn_qkv_width, spec.query_heads * spec.head_dim * 2)
    rows = wish.prompt_chunk * (4 * spec.wide + 2 * widest) * FLOAT
    return rows + (4 * WINDOW_ROWS * spec.vocabulary * FLOAT if last else 0)


def _page_tokens(spec: ModelSpec) -> int:
    return math.ceil(PAGE_TOKENS / spec.block_tokens) * spec.block_tokens
