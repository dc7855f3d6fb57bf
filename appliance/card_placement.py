"""Owns the arithmetic of one placement on cards: the split, every card's parts, and what stays in RAM beside them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from appliance.card_sizing import HOST_RUNTIME_BYTES, CardAsk, CardSizes, card_sizes, kv_type
from appliance.model.qwen4exp.device_footprint import RING, WINDOW_ROWS
from appliance.model.qwen4exp.footprint import ngram_bytes
from appliance.model.qwen4exp.handoff_footprint import pinned_bytes
from appliance.model.qwen4exp.loading_footprint import STAGING_BYTES
from appliance.model.qwen4exp.prompt_footprint import STAGED_ROWS, chunk_rows, recorded_rows
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.stage_footprint import ModelBytes, model_bytes
from appliance.placed import Item, Placement, Shape, StagePlan
from appliance.placed_speed import COMPANY, DRAFTS
from appliance.rig.cards import Card
from appliance.rig.judge import Device
from appliance.rig.machine import Machine
from appliance.rig.schema import Rig
from appliance.sizing import RUNTIME_BYTES, draft_min_p, headroom_bytes, notes, page_size
from appliance.speeds import CardSpeeds, card_speeds, lane, load_of, reaches, shares_of
from appliance.split import StageCost, best_split
from appliance.window_cost import Load, Way, hit_share, stage_s

WORTH_SAYING = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """One shape on some cards, ready to price any range of layers.

    Attributes:
        spec, model: the model, whole and layer by layer.
        cards: in stage order.
        budgets, caches: of each card; a cache is None where it takes what is left.
        ask: what the cards have in common.
        load, way, speeds: what the speed formulas need.
        users, drafts: of the expected window.
    """

    spec: ModelSpec
    model: ModelBytes
    cards: tuple[Card, ...]
    budgets: tuple[int, ...]
    caches: tuple[int | None, ...]
    ask: CardAsk
    load: Load
    way: Way
    speeds: tuple[CardSpeeds, ...]
    users: int
    drafts: int

    def sizes(self, stage: int, layers: range) -> CardSizes:
        """What a card takes with some layers."""
        return card_sizes(self.spec, self.model, layers, self.ask, budget=self.budgets[stage], cache=self.caches[stage])

    def cost(self, stage: int, layers: range) -> StageCost:
        """The same as what the split minimises."""
        sizes = self.sizes(stage, layers)
        here = lane(self.speeds[stage], shares_of(self.spec, self.model, layers), cache_bytes=0)
        seconds = stage_s(
            self.load,
            here,
            self.way,
            users=self.users,
            drafts=self.drafts,
            hits=hit_share(sizes.cached).middle,
            last=layers.stop == self.model.layers,
        )
        return StageCost(sizes.short, seconds, seconds)

    def best(self) -> tuple[int, ...]:
        """First layers of the later cards in the split that decodes fastest."""
        return best_split(self.cost, stages=len(self.cards), layers=self.model.layers)

    def slowest(self, split: Sequence[int]) -> StageCost:
        """What the slowest card of a split takes."""
        costs = [self.cost(stage, layers) for stage, layers in enumerate(ranges(split, self.model.layers))]
        return max(costs, key=lambda cost: cost.seconds)


def ranges(split: Sequence[int], layers: int) -> list[range]:
    """Layers of each card from the first layers of the later ones."""
    return [range(first, past) for first, past in itertools.pairwise((0, *split, layers))]


def size_up_cards(shape: Shape, *, machine: Machine, spec: ModelSpec, rig: Rig, device: Device) -> Placement:
    """Prices one shape on the device's cards; it may not fit.

    Prompt chunks are recorded where every card holds all its experts beside what that takes.
    """
    recorded = not rig.engine.plain and shape.home in ("vram", "ram")
    pricing = _pricing(shape, machine=machine, spec=spec, rig=rig, cards=device.cards, recorded=recorded)
    split, sizes = _parted(pricing, rig.cards.layer_split)
    if recorded and any(one.experts < one.all_experts or one.short for one in sizes):
        pricing = _pricing(shape, machine=machine, spec=spec, rig=rig, cards=device.cards, recorded=False)
        split, sizes = _parted(pricing, rig.cards.layer_split)
    said = list(notes(spec, rig, device))
    if split and rig.cards.layer_split != "auto":
        said += _price_of_split(pricing, split)
    budget = machine.ram.budget_bytes
    draft_max = rig.serving.draft_max if spec.has_draft else 0
    return Placement(
        device=device.name,
        items=_in_ram(spec, sizes, home=shape.home, budget=budget, handoff=_through_ram(machine, spec, pricing)),
        budget_bytes=budget,
        parallel=shape.parallel,
        max_tokens=shape.tokens,
        page_tokens=page_size(spec),
        pages=pricing.ask.pages,
        prompt_chunk=WINDOW_ROWS,
        draft_max=draft_max,
        draft_min_p=draft_min_p(rig),
        batch_mtp=rig.serving.batch_mtp,
        queue=rig.serving.queue,
        unpack="planes",
        ngram_home=shape.home,
        kv_type=pricing.ask.kv_type,
        notes=tuple(said),
        stages=tuple(
            _stage(card, layers, one)
            for card, layers, one in zip(device.cards, ranges(split, spec.trunk_layers), sizes, strict=True)
        ),
        max_rows=WINDOW_ROWS,
        # What the ring of raw indexer keys can tell apart.
        span_rows=RING - spec.block_tokens + 1,
        chunk_rows=pricing.ask.chunk_rows,
        recorded_rows=recorded_rows(pricing.ask.recorded_rows),
        groups=pricing.ask.groups,
        plain=rig.engine.plain,
        nvtx=rig.engine.nvtx,
    )


def _parted(pricing: Pricing, stated: Sequence[int] | str) -> tuple[tuple[int, ...], list[CardSizes]]:
    """First layers of the later cards, as stated or the best, and what each card then takes."""
    split: tuple[int, ...] = ()
    if len(pricing.cards) > 1:
        split = pricing.best() if isinstance(stated, str) else tuple(stated)
    return split, [pricing.sizes(stage, layers) for stage, layers in enumerate(ranges(split, pricing.model.layers))]


def _through_ram(machine: Machine, spec: ModelSpec, pricing: Pricing) -> int:
    """What borders take in RAM whose cards were not seen to reach each other."""
    ask = pricing.ask
    borders = [pair for pair in itertools.pairwise(pricing.cards) if not reaches(machine, *pair)]
    return len(borders) * pinned_bytes(spec, rows=ask.chunk_rows, stages=ask.stages, groups=ask.groups)


def _in_ram(spec: ModelSpec, sizes: Sequence[CardSizes], *, home: str, budget: int, handoff: int) -> tuple[Item, ...]:
    """What stays in RAM beside the cards."""
    passing = (Item("hand-off", handoff, "pinned: these cards do not reach each other"),) if handoff else ()
    return (
        Item("experts", sum(one.host_experts for one in sizes), "pinned, read over PCIe"),
        Item("n-gram table", ngram_bytes(spec) if home == "ram" else 0, f"home {home}"),
        Item("buffers", STAGING_BYTES * len(sizes), "weights on their way to the card"),
        *passing,
        Item("runtime", RUNTIME_BYTES + HOST_RUNTIME_BYTES, "interpreter, torch, CUDA, tokenizer, server"),
        Item("headroom", headroom_bytes(budget)),
    )


def _stage(card: Card, layers: range, sizes: CardSizes) -> StagePlan:
    return StagePlan(
        card=card,
        first_layer=layers.start,
        past_layer=layers.stop,
        items=sizes.items(),
        budget_bytes=sizes.budget,
        expert_bytes=sizes.experts,
        all_expert_bytes=sizes.all_experts,
    )


def _pricing(
    shape: Shape, *, machine: Machine, spec: ModelSpec, rig: Rig, cards: tuple[Card, ...], recorded: bool
) -> Pricing:
    draft_max = rig.serving.draft_max if spec.has_draft else 0
    page_tokens, storage = page_size(spec), kv_type(rig, tokens=shape.tokens)
    budgets = tuple(
        (card.free_bytes if card.free_bytes is not None else card.vram_bytes or 0) - kept
        for card, kept in zip(cards, per_card(rig.cards.vram_reserve, len(cards)), strict=True)
    )
    rows = _chunk_rows(spec, rig, tokens=shape.tokens, budgets=budgets, recorded=recorded)
    return Pricing(
        spec=spec,
        model=model_bytes(spec, page_tokens=page_tokens, kv_type=storage, draft=draft_max > 0),
        cards=cards,
        budgets=budgets,
        caches=(None,) * len(cards) if rig.experts.cache == "auto" else per_card(rig.experts.cache, len(cards)),
        ask=CardAsk(
            tokens=shape.tokens,
            slots=shape.parallel,
            pages=shape.parallel * math.ceil(shape.tokens / page_tokens),
            home=shape.home,
            kv_type=storage,
            chunk_rows=rows,
            recorded_rows=max(recorded_rows(rows), default=0) if recorded else 0,
            stages=len(cards),
            groups=_groups(rig, cards=len(cards), parallel=shape.parallel),
        ),
        load=load_of(spec, draft=draft_max > 0),
        way=Way(
            draft_max=draft_max,
            batch_mtp=rig.serving.batch_mtp,
            groups=len(cards),
            prompt_chunk=WINDOW_ROWS,
            ram_gbps=machine.rates.ram_gbps.value,
        ),
        speeds=tuple(card_speeds(machine, card) for card in cards),
        users=math.ceil(min(COMPANY, shape.parallel) / len(cards)),
        drafts=min(draft_max, DRAFTS),
    )


def _groups(rig: Rig, *, cards: int, parallel: int) -> int:
    stated = rig.serving.batch_groups
    return min(cards if stated == "auto" else stated, parallel)


def _chunk_rows(spec: ModelSpec, rig: Rig, *, tokens: int, budgets: Sequence[int], recorded: bool) -> int:
    if rig.serving.prompt_chunk != "auto":
        return min(rig.serving.prompt_chunk, tokens)
    rows = chunk_rows(spec, tokens=tokens, card_bytes=min(budgets), stages=len(budgets))
    return min(rows, STAGED_ROWS) if recorded and len(budgets) > 1 else rows


def per_card(sizes: int | tuple[int, ...], cards: int) -> tuple[int, ...]:
    """One size for each card; the rig states one for all, or each."""
    return (sizes,) * cards if isinstance(sizes, int) else sizes


def _price_of_split(pricing: Pricing, split: Sequence[int]) -> Iterator[str]:
    """What a stated split costs against the automatic one; nothing when it is not worth saying."""
    automatic = pricing.best()
    if tuple(split) == automatic:
        return
    now, then = pricing.slowest(split), pricing.slowest(automatic)
    more = now.seconds / then.seconds - 1
    if more >= WORTH_SAYING:
        yield (
            f"layer_split = {list(split)}: the slowest card takes {more:.0%} longer a window than with "
            f"{list(automatic)}, which is what auto chooses here (estimate)"
        )
