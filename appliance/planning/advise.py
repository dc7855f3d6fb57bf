"""Owns the recommendation: which size of the model, which cards, how many conversations of what length, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.model.qwen4exp.footprint import ngram_bytes
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.models.catalogue import Catalogue, Size
from appliance.models.outline import outline
from appliance.planning.plan import PlanView, view
from appliance.planning.wish import Wish
from appliance.rig.cards import Card
from appliance.rig.machine import Machine
from appliance.rig.size import GIB, MIB
from appliance.rig.warnings import card_problem, table_advice

# (conversations, context), the most wanted first.
WANTED = (
    (8, 65536),
    (8, 32768),
    (4, 65536),
    (4, 32768),
    (4, 16384),
    (2, 32768),
    (2, 16384),
    (1, 32768),
    (1, 16384),
    (1, 8192),
)
LEAST = (1, 8192)
# What cards are chosen for: enough people for all of them.
COMPANY_WISH = (4, 16384)
# What room for conversations may cost one user's speed, against one short conversation alone.
SPEED_SPENT = 0.15
# One person reads along comfortably from here; below it a smaller size is recommended.
COMFORT_TOKENS_S = 25.0
CARD_LEAST_BYTES = 6 * GIB
RESERVE_BYTES = 700 * MIB
KV_SHORT = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A recommendation.

    Attributes:
        size: catalogue entry; None for the built-in model or a model that was given.
        cards: those to use, in stage order; empty for the CPU.
        wish: what to ask for; None on the CPU.
        plan: its bars and speeds; None on the CPU.
        reasons: sentences, the most important first.
    """

    size: Size | None
    cards: tuple[Card, ...]
    wish: Wish | None
    plan: PlanView | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A catalogue entry beside this machine: its recommendation, or the refusal with the numbers."""

    size: Size
    advice: Advice | None
    refusal: str


def usable_cards(machine: Machine) -> tuple[tuple[Card, ...], tuple[str, ...]]:
    """(cards that help, sentences on those left out); the emptiest first, cards of one size in bus order."""
    kept, left = [], []
    for card in machine.cards.cards:
        free = card.free_bytes if card.free_bytes is not None else card.vram_bytes or 0
        reason = card_problem(card)
        if reason is None and card.unified:
            reason = "its memory is the machine's RAM"
        if reason is None and free < CARD_LEAST_BYTES:
            held = ", ".join(f"process {process.pid} {process.name}".strip() for process in card.processes)
            reason = f"only {free / GIB:.1f} GiB are free" + (f"; {held} holds the rest" if held else "")
        if reason is None:
            kept.append(card)
        else:
            left.append(f"card {card.index} ({card.name}) is left out: {reason}")
    return tuple(kept), tuple(left)


def kv_type(tokens: int) -> str:
    """bf16 up to 8K, int8 above, as rig.toml's "auto" on cards."""
    return "bf16" if tokens <= KV_SHORT else "int8"


def wish_for(spec: ModelSpec, *, parallel: int, tokens: int, home: str = "auto") -> Wish:
    """A wish with everything else as "auto" decides it."""
    return Wish(
        parallel=parallel,
        max_tokens=min(tokens, spec.context_tokens),
        kv=kv_type(tokens),
        ngram_home=home,
        draft=spec.has_draft,
        reserve_bytes=RESERVE_BYTES,
    )


def recommend(
    machine: Machine, spec: ModelSpec, *, size: Size | None = None, cards: Sequence[Card] | None = None
) -> Advice | None:
    """The recommendation for one model; None when no setting of it fits here, and `least` says why.

    Args:
        machine: with the speeds that were measured.
        spec: the model.
        size: its catalogue entry.
        cards: those that shall compute, in stage order; None: those that are quickest together.
    """
    usable, left = usable_cards(machine)
    idle: tuple[str, ...] = ()
    if cards is None:
        cards, idle = _quickest_together(machine, spec, usable)
    floor = least(machine, spec, cards)
    if floor.placement is None or floor.speed is None:
        return None
    alone = floor.speed.users[0].middle
    for parallel, tokens in WANTED:
        plan = view(machine, spec, cards, wish_for(spec, parallel=parallel, tokens=tokens), title="recommended")
        if plan.speed is None or plan.placement is None or plan.speed.users[0].middle < (1 - SPEED_SPENT) * alone:
            continue
        disk = _disk(machine, spec, plan.placement.ngram_home)
        if disk is not None and not disk[0]:
            return None
        spent = max(0.0, 1 - plan.speed.users[0].middle / alone)
        reasons = [f"{parallel} conversations of {tokens:,} tokens cost one user {spent:.0%} of the best speed here"]
        reasons += [*left, *idle, *([disk[1]] if disk else [])]
        wish = wish_for(spec, parallel=parallel, tokens=tokens, home=plan.placement.ngram_home)
        return Advice(size=size, cards=plan.cards, wish=wish, plan=plan, reasons=tuple(reasons))
    return None


def _quickest_together(
    machine: Machine, spec: ModelSpec, usable: Sequence[Card]
) -> tuple[Sequence[Card], tuple[str, ...]]:
    """(the cards to use, why others stay idle), judged for several conversations where they fit."""
    for parallel, tokens in (COMPANY_WISH, LEAST):
        wish = wish_for(spec, parallel=parallel, tokens=tokens)
        found = view(machine, spec, usable, wish, choose=True)
        if found.placement is not None:
            return found.cards, found.placement.notes
    return usable, ()


def least(machine: Machine, spec: ModelSpec, cards: Sequence[Card] | None = None) -> PlanView:
    """The smallest setting, on these cards or on all that help.

    What does not fit then does not fit at all, and says by how much.
    """
    usable, left = usable_cards(machine)
    if not (cards or usable):
        why = "; ".join(left) or machine.cards.note or "no card"
        return PlanView(title="least", placement=None, speed=None, refusal=f"it needs a card: {why}")
    wish = wish_for(spec, parallel=LEAST[0], tokens=LEAST[1])
    found = view(machine, spec, cards or usable, wish, title="least")
    disk = _disk(machine, spec, found.placement.ngram_home) if found.placement else None
    if disk is not None and not disk[0]:
        return PlanView(title="least", placement=None, speed=None, refusal=disk[1])
    return found


def _disk(machine: Machine, spec: ModelSpec, home: str) -> tuple[bool, str] | None:
    """What the disk means for a table that is read from it."""
    if home not in ("direct", "mmap"):
        return None
    return table_advice(machine.storage, machine.rates, table_bytes=ngram_bytes(spec), free_ram_bytes=0)


def offers(machine: Machine, catalogue: Catalogue) -> tuple[Offer, ...]:
    """Every published size: what it would give here, or why it cannot be had."""
    found = []
    for size in catalogue.sizes:
        spec = outline(size)
        advice = recommend(machine, spec, size=size)
        found.append(Offer(size=size, advice=advice, refusal="" if advice else least(machine, spec).refusal))
    return tuple(found)


def best_offer(machine: Machine, offered: Sequence[Offer]) -> Advice:
    """The largest size that is comfortable for one person, else the quickest; the built-in model if none fits."""
    found = [offer.advice for offer in offered if offer.advice is not None]
    if not found:
        _, left = usable_cards(machine)
        reason = machine.cards.note or "no published size fits here"
        if machine.cards.cards and not left:
            reason = "no published size of the model fits in this machine's RAM and VRAM together"
        return Advice(size=None, cards=(), wish=None, plan=None, reasons=(*left, f"the built-in model: {reason}"))
    comfortable = [advice for advice in found if _one_user(advice) >= COMFORT_TOKENS_S]
    chosen = max(comfortable, key=_bytes) if comfortable else max(found, key=_one_user)
    larger = [advice for advice in found if _bytes(advice) > _bytes(chosen)]
    why = f"{chosen.size.name if chosen.size else ''}: about {_one_user(chosen):.0f} tokens a second for one user"
    reasons = [f"{why}, the largest size that is quick enough to read along" if comfortable else f"{why}, the quickest"]
    reasons += [
        f"{advice.size.name if advice.size else ''} would fit, at about {_one_user(advice):.0f}" for advice in larger
    ]
    return dataclasses.replace(chosen, reasons=(*reasons, *chosen.reasons))


def _one_user(advice: Advice) -> float:
    return advice.plan.speed.users[0].middle if advice.plan and advice.plan.speed else 0.0


def _bytes(advice: Advice) -> int:
    return advice.size.experts_bytes if advice.size else 0
