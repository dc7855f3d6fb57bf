"""Owns the second pass over a rig: what can only be judged beside a machine and a model."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Protocol

from appliance.errors import MachineError
from appliance.rig.cards import Card
from appliance.rig.describe import value_text
from appliance.rig.fields import facts
from appliance.rig.load import LoadedRig
from appliance.rig.machine import Machine
from appliance.rig.problem import Problem, found_text
from appliance.rig.schema import BUILTIN, TABLES, Rig


class ModelFacts(Protocol):
    """What the second pass needs to know of a model."""

    @property
    def trunk_layers(self) -> int:
        """Layers, the draft layer not counted."""
        ...

    @property
    def context_tokens(self) -> int:
        """Tokens it was trained for."""
        ...


@dataclass(frozen=True, slots=True)
class Device:
    """What computes, and a sentence on why, for log, status and readiness; "" when it is what the rig says.

    Attributes:
        name: "cpu", or "cuda:0" for the card, which is the only one that the process then sees.
        note: why, or "".
        card: the card; None on the CPU.
    """

    name: str
    note: str
    card: Card | None = None


def judge(loaded: LoadedRig, machine: Machine, spec: ModelFacts | None) -> list[Problem]:
    """Problems of a valid rig on this machine with this model.

    Args:
        loaded: the rig.
        machine: where it shall run.
        spec: the model; None before its header was read, which leaves out what needs it.
    """
    card = any(unusable(one) is None for one in _cards_of(loaded.rig, machine))
    problems = not_available(loaded, card=card, without=() if spec else ("cards.layer_split",))
    problems += _unknown_cards(loaded, machine)
    if spec is None:
        return problems
    split = loaded.rig.cards.layer_split
    if split != "auto":
        wrong = split_problem(split, cards=card_count(loaded.rig, machine), layers=spec.trunk_layers)
        if wrong is not None:
            says, allowed, hint = wrong
            problems = [p for p in problems if p.key != "cards.layer_split"]
            problems.append(_at(loaded, "cards.layer_split", says, allowed=allowed, hint=hint))
    tokens = loaded.rig.context.max_tokens
    if tokens != "auto" and tokens > spec.context_tokens:
        problems.append(
            _at(
                loaded,
                "context.max_tokens",
                f"found {tokens}, more than the {spec.context_tokens} the model was trained for",
                allowed=f'"auto", or 64 to {spec.context_tokens}',
                hint=f"write {spec.context_tokens}",
            )
        )
    return problems


def not_available(loaded: LoadedRig, *, card: bool = False, without: tuple[str, ...] = ()) -> list[Problem]:
    """Keys before their time: allowed values that this version cannot honour yet, on the CPU or on a card."""
    problems = []
    for table_name, table in TABLES.items():
        values = getattr(loaded.rig, table_name)
        for key_name, field in table.model_fields.items():
            only = facts(field).honoured(card=card)
            value = getattr(values, key_name)
            dotted = f"{table_name}.{key_name}"
            if only is None or value in only or dotted in without:
                continue
            allowed = " or ".join("absent" if v is None else value_text(table, key_name, v) for v in only)
            says = f"found {value_text(table, key_name, value)}, not available in this version"
            problems.append(_at(loaded, dotted, says, allowed=allowed))
    return problems


def _unknown_cards(loaded: LoadedRig, machine: Machine) -> list[Problem]:
    """Listed cards that are not here, or more of them than this version uses."""
    devices = loaded.rig.cards.devices
    if isinstance(devices, str):
        return []
    seen = ", ".join(f"{card.index} ({card.uuid})" for card in machine.cards.cards) or machine.cards.note or "none"
    missing = [name for name in devices if _find(machine, name) is None]
    if missing:
        says = f"found {found_text(devices)}, and this machine has no card {missing[0]}"
        return [_at(loaded, "cards.devices", says, allowed=f"cards here: {seen}")]
    if len(devices) > 1:
        says = f"found {found_text(devices)}, several cards are not available in this version"
        return [_at(loaded, "cards.devices", says, allowed='"auto", "cpu" or one card', hint="name the largest")]
    return []


def split_problem(split: tuple[int, ...], *, cards: int, layers: int) -> tuple[str, str, str] | None:
    """What is wrong with a layer_split, as (says, allowed, hint); None when it is right.

    Args:
        split: first layer of each later card.
        cards: how many cards compute.
        layers: layers of the model's trunk.
    """
    wanted = cards - 1
    count = f"{wanted} number{'' if wanted == 1 else 's'}"
    allowed = (
        f"{count} for {cards} cards, each the first layer of a later card (not a count per card), "
        f"from 1 to {layers - 1}, strictly rising"
    )
    says = f"found {found_text(split)}"
    if wanted < 1:
        return f"{says} with {cards} card{'' if cards == 1 else 's'}", '"auto"', "a split needs two cards or more"
    if len(split) == cards and sum(split) == layers and min(split) > 0:
        right = list(itertools.accumulate(split))[:-1]
        return f"{says}, which counts layers per card", allowed, f"write {right}"
    if len(split) != wanted:
        return f"{says}, {len(split)} number{'' if len(split) == 1 else 's'}", allowed, ""
    outside = [layer for layer in split if not 1 <= layer < layers]
    if outside:
        return f"{says}, where {outside[0]} is out of range", allowed, ""
    for first, second in itertools.pairwise(split):
        if second <= first:
            return f"{says}, where {second} does not rise above {first}", allowed, ""
    return None


def card_count(rig: Rig, machine: Machine) -> int:
    """Cards the rig asks for."""
    devices = rig.cards.devices
    if devices == "cpu":
        return 0
    return len(machine.cards.cards) if devices == "auto" else len(devices)


def choose_device(loaded: LoadedRig, machine: Machine) -> Device:
    """What computes. Only the built-in model runs on a CPU that nobody asked for (CTR-03).

    Raises:
        MachineError: another model, and no card that this version can use.
    """
    rig = loaded.rig
    if rig.cards.devices == "cpu":
        return Device("cpu", "")
    usable = [card for card in _cards_of(rig, machine) if unusable(card) is None]
    if usable:
        best = max(usable, key=lambda card: card.free_bytes or 0)
        others = len(_cards_of(rig, machine)) - 1
        note = f"this version computes on one card; the other {others} stay idle" if others else ""
        return Device("cuda:0", note, best)
    cards = _cards_of(rig, machine)
    if cards:
        reason = f"no card here can be used: {'; '.join(f'{c.name}: {unusable(c)}' for c in cards)}"
    else:
        reason = machine.cards.note or "no card"
    if rig.cards.devices != "auto":
        raise MachineError(f"{loaded.where('cards.devices')}: {reason}", hint='write devices = "cpu" or another card')
    if rig.model.path != BUILTIN:
        raise MachineError(
            f"{loaded.where('model.path')}: {rig.model.path} needs a card, and {reason}",
            hint='to serve it on the CPU, slowly, write devices = "cpu" in [cards]',
        )
    return Device("cpu", f"the built-in model runs on the CPU: {reason}")


LEAST_CAPABILITY = (8, 0)


def unusable(card: Card) -> str | None:
    """Why the kernels cannot run on a card; None when they can."""
    if card.capability is None or card.vram_bytes is None:
        return "the driver does not say what it is"
    major, _, minor = card.capability.partition(".")
    if (int(major), int(minor or 0)) < LEAST_CAPABILITY:
        return f"its compute capability is {card.capability}, and at least 8.0 is needed"
    return None


def _cards_of(rig: Rig, machine: Machine) -> list[Card]:
    """Cards that the rig means, as far as they are here."""
    devices = rig.cards.devices
    if devices == "cpu":
        return []
    if devices == "auto":
        return list(machine.cards.cards)
    return [card for card in (_find(machine, name) for name in devices) if card is not None]


def _find(machine: Machine, name: int | str) -> Card | None:
    return next((card for card in machine.cards.cards if name in (card.index, card.uuid)), None)


def machine_differences(loaded: LoadedRig, machine: Machine) -> list[str]:
    """Sentences on what changed for the worse since [machine] was written."""
    written = loaded.rig.machine
    lines = []
    ceiling = machine.ram.ceiling_bytes
    if written.ram_limit is not None and ceiling < written.ram_limit * 0.95:
        was = value_text(TABLES["machine"], "ram_limit", written.ram_limit)
        now = value_text(TABLES["machine"], "ram_limit", ceiling)
        lines.append(f"RAM limit was {was} when the rig was written and is {now} now")
    before = {card.uuid for card in written.card if card.uuid}
    missing = before - {card.uuid for card in machine.cards.cards}
    if missing:
        lines.append(f"{len(missing)} of the {len(before)} cards in the rig are gone: {', '.join(sorted(missing))}")
    return lines


def _at(loaded: LoadedRig, dotted: str, says: str, *, allowed: str = "", hint: str = "") -> Problem:
    return Problem(where=loaded.where(dotted), key=dotted, says=says, allowed=allowed, hint=hint)
