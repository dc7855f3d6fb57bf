"""Owns what the wizard recommends: the planner's advice, as far as `strata check` accepts it in this version."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from appliance.models.catalogue import Catalogue, Size
from appliance.models.outline import outline
from appliance.planning.advise import COMFORT_TOKENS_S, recommend, usable_cards
from appliance.planning.alternatives import rig_values
from appliance.planning.plan import difference, view
from appliance.rig.schema import BUILTIN
from setup_wizard.draft import Answer, Draft, Judged, Model, judged

# What is left to the appliance's own "auto" when the planner's choice is refused, one table after the other.
GIVEN_UP = ("ngram.", "context.kv", "context.", "serving.", "cards.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """Answers that `strata check` accepts, what they give, and why; not accepted when nothing does."""

    answers: tuple[Answer, ...]
    judged: Judged
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A catalogue entry beside this machine."""

    size: Size
    recommended: Recommended

    @property
    def one_user(self) -> float:
        """Tokens a second, 0.0 when it does not fit."""
        plan = self.recommended.judged.plan
        if not self.recommended.judged.accepted or plan is None or plan.speed is None:
            return 0.0
        return plan.speed.users[0].middle

    def sentence(self) -> str:
        """What it would give, or why it cannot be had."""
        if not self.recommended.judged.accepted:
            return f"does not fit: {self.recommended.judged.problems[0].partition('; ')[0]}"
        if not self.recommended.judged.on_card:
            return "on the CPU only, slowly: it does not fit with the card here"
        return f"fits, about {self.one_user:.0f} tokens a second for one user (estimate)"


def recommended(draft: Draft) -> Recommended:
    """The best settings of the draft's model that are accepted here; keys that the rig states already stay."""
    answers, reasons = _advised(draft)
    kept = tuple(answer for answer in answers if not draft.has(answer.key))
    found = judged(draft.answer(*kept))
    for prefix in GIVEN_UP:
        if found.accepted:
            break
        fewer = tuple(answer for answer in kept if not answer.key.startswith(prefix))
        if len(fewer) < len(kept):
            kept, found = fewer, judged(draft.answer(*fewer))
    if not found.accepted and not draft.has("cards.devices"):
        on_cpu = (*kept, Answer("cards.devices", "cpu"))
        slow = judged(draft.answer(*on_cpu))
        why = found.problems[0]
        if not slow.accepted and not draft.machine.cards.cards:
            return Recommended(answers=on_cpu, judged=slow, reasons=reasons)  # whose refusal has the numbers
        if slow.accepted:
            return Recommended(answers=on_cpu, judged=slow, reasons=(f"on the CPU, slowly, because {why}",))
    return Recommended(answers=kept, judged=found, reasons=reasons)


def _advised(draft: Draft) -> tuple[tuple[Answer, ...], tuple[str, ...]]:
    """The planner's advice for the cards that the rig names, or for those that are quickest together."""
    if draft.model.path == BUILTIN:
        return (), ("the built-in model needs no settings: the appliance chooses at every start",)
    devices = draft.value("cards.devices")
    if devices == "cpu":
        return (), ("the CPU computes, because the rig says so",)
    cards, left = usable_cards(draft.machine)
    if isinstance(devices, list):
        named = {name: card for card in cards for name in (card.uuid, card.index)}
        cards = tuple(named[name] for name in devices if name in named)
    if not cards:
        return (), (*left, draft.machine.cards.note or "there is no card that helps")
    advice = recommend(draft.machine, draft.model.spec, cards=cards if isinstance(devices, list) else None)
    if advice is None or advice.plan is None or advice.wish is None:
        return (), left
    reasons = list(advice.reasons)
    if len(advice.cards) > 1:
        first = max(advice.cards, key=lambda card: card.free_bytes or 0)
        alone = view(draft.machine, draft.model.spec, [first], advice.wish, title="one card")
        gain = difference(alone, advice.plan) if alone.fits else "the model does not fit on one"
        reasons.append(f"{len(advice.cards)} cards against card {first.index} alone: {gain}")
    tables = rig_values(advice, draft.machine, draft.model.path)
    found = (Answer(f"{table}.{key}", value) for table, keys in tables.items() for key, value in keys.items())
    return tuple(answer for answer in found if answer.key != "model.path"), tuple(reasons)


def offers(draft: Draft, catalogue: Catalogue, folder: str) -> tuple[Offered, ...]:
    """Every published size: what it would give here by what `strata check` accepts, or the refusal."""
    bare = dataclasses.replace(draft, present=None, answers=())
    found = []
    for size in catalogue.sizes:
        model = Model(path=f"{folder}/{size.id}.gguf", spec=outline(size), size=size)
        found.append(Offered(size=size, recommended=recommended(bare.serve(model))))
    return tuple(found)


def best(offered: tuple[Offered, ...]) -> Offered | None:
    """The largest size that one person reads along with, else the quickest; None when none fits."""
    fitting = [offer for offer in offered if offer.recommended.judged.accepted and offer.recommended.judged.on_card]
    comfortable = [offer for offer in fitting if offer.one_user >= COMFORT_TOKENS_S]
    if comfortable:
        return max(comfortable, key=lambda offer: offer.size.experts_bytes)
    return max(fitting, key=lambda offer: offer.one_user, default=None)
