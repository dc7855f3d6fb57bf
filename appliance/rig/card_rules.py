"""Owns which cards a rig means, which of them can compute, and what is wrong with how it names them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from appliance.rig.cards import Card
from appliance.rig.load import LoadedRig
from appliance.rig.machine import Machine
from appliance.rig.problem import Problem, found_text
from appliance.rig.schema import Rig
from appliance.rig.warnings import card_problem


def cards_of(rig: Rig, machine: Machine) -> tuple[Card, ...]:
    """Cards that the rig means, in its order, as far as they are here; "auto": all of them."""
    devices = rig.cards.devices
    if devices == "cpu":
        return ()
    if devices == "auto":
        return machine.cards.cards
    return tuple(card for card in (_find(machine, name) for name in devices) if card is not None)


def usable_of(rig: Rig, machine: Machine) -> tuple[Card, ...]:
    """Those of them that can compute."""
    return tuple(card for card in cards_of(rig, machine) if card_problem(card) is None)


def left_out(rig: Rig, machine: Machine) -> list[str]:
    """A sentence on each of them that cannot, with the reason (SPLIT-07)."""
    reasons = ((card, card_problem(card)) for card in cards_of(rig, machine))
    return [f"card {card.index} ({card.name}) cannot be used: {reason}" for card, reason in reasons if reason]


def card_problems(loaded: LoadedRig, machine: Machine) -> list[Problem]:
    """Listed cards that are not here, one card under two names, and sizes for another number of cards (SPLIT-04)."""
    devices = loaded.rig.cards.devices
    if isinstance(devices, str):
        return list(_size_problems(loaded, len(usable_of(loaded.rig, machine))))
    missing = [name for name in devices if _find(machine, name) is None]
    if missing:
        here = ", ".join(f"{card.index} ({card.uuid})" for card in machine.cards.cards) or machine.cards.note or "none"
        names = ", ".join(str(name) for name in missing)
        says = f"found {found_text(devices)}, and this machine has no card {names}"
        return [_at(loaded, "cards.devices", says, allowed=f"cards here: {here}")]
    found = cards_of(loaded.rig, machine)
    twice = [uuid for uuid, count in Counter(card.uuid for card in found).items() if count > 1]
    if twice:
        says = f"found {found_text(devices)}, which names one card twice: {twice[0]}"
        return [_at(loaded, "cards.devices", says, allowed="each card once, by number or by UUID")]
    if len(found) > 1 and any(card.mig for card in found):
        says = f"found {found_text(devices)}, and a process sees one MIG slice only"
        return [_at(loaded, "cards.devices", says, allowed="one MIG slice, or whole cards")]
    return list(_size_problems(loaded, len(found)))


def _size_problems(loaded: LoadedRig, cards: int) -> Iterator[Problem]:
    """A list of sizes has one for each card, and groups need several."""
    for key, sizes in (
        ("cards.vram_reserve", loaded.rig.cards.vram_reserve),
        ("experts.cache", loaded.rig.experts.cache),
    ):
        if isinstance(sizes, tuple) and len(sizes) != cards:
            says = f"found {len(sizes)} sizes for {cards} card{'' if cards == 1 else 's'}"
            yield _at(loaded, key, says, allowed="one size for all cards, or one for each")
    groups = loaded.rig.serving.batch_groups
    if groups != "auto" and groups > 1 and cards == 1:
        yield _at(loaded, "serving.batch_groups", f"found {groups} with 1 card", allowed='"auto" or 1 with one card')


def _find(machine: Machine, name: int | str) -> Card | None:
    return next((card for card in machine.cards.cards if name in (card.index, card.uuid)), None)


def _at(loaded: LoadedRig, dotted: str, says: str, *, allowed: str) -> Problem:
    return Problem(where=loaded.where(dotted), key=dotted, says=says, allowed=allowed)
