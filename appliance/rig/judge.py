"""Owns the second pass over a rig: what can only be judged beside a machine and a model."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Protocol

from appliance.errors import MachineError
from appliance.rig.card_rules import card_problems, left_out, usable_of
from appliance.rig.cards import Card
from appliance.rig.describe import value_text
from appliance.rig.fields import facts
from appliance.rig.load import LoadedRig
from appliance.rig.machine import Machine
from appliance.rig.problem import Problem, found_text
from appliance.rig.schema import BUILTIN, TABLES
from appliance.rig.size import format_size
from appliance.rig.warnings import OTHERS_BYTES


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
        cards: in stage order; none on the CPU.
    """

    name: str
    note: str
    cards: tuple[Card, ...] = ()

    @property
    def card(self) -> Card | None:
        """The first of the cards; None on the CPU."""
        return self.cards[0] if self.cards else None


def judge(loaded: LoadedRig, machine: Machine, spec: ModelFacts | None) -> list[Problem]:
    """Problems of a valid rig on this machine with this model.

    Args:
        loaded: the rig.
        machine: where it shall run.
        spec: the model; None before its header was read, which leaves out what needs it.
    """
    cards = usable_of(loaded.rig, machine)
    problems = not_available(loaded, card=bool(cards), without=("cards.layer_split",))
    problems += card_problems(loaded, machine)
    if spec is None:
        return problems
    devices, split = loaded.rig.cards.devices, loaded.rig.cards.layer_split
    if not isinstance(devices, str) and len(devices) > spec.trunk_layers:
        says = f"found {len(devices)} cards for {spec.trunk_layers} layers, and every card needs one"
        problems.append(_at(loaded, "cards.devices", says, allowed=f"up to {spec.trunk_layers} cards"))
    elif split != "auto":
        count = len(cards) if isinstance(devices, str) else len(devices)
        wrong = split_problem(split, cards=count, layers=spec.trunk_layers)
        if wrong is not None:
            says, allowed, hint = wrong
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


def choose_device(loaded: LoadedRig, machine: Machine) -> Device:
    """What computes. Only the built-in model runs on a CPU that nobody asked for (CTR-03).

    Named cards all compute, in their order. With "auto" it is every card that can, and the placement chooses among
    them; the built-in model is too small to be split and takes the emptiest.

    Raises:
        MachineError: a named card that cannot compute, or another model and no card that can.
    """
    rig = loaded.rig
    if rig.cards.devices == "cpu":
        return Device("cpu", "")
    usable, left = usable_of(rig, machine), left_out(rig, machine)
    if left and rig.cards.devices != "auto":
        raise MachineError(
            f"{loaded.where('cards.devices')}: {'; '.join(left)}", hint='write devices = "cpu" or other cards'
        )
    if usable and rig.cards.devices == "auto" and rig.model.path == BUILTIN:
        best = max(usable, key=lambda card: card.free_bytes or 0)
        others = len(machine.cards.cards) - 1
        return Device(
            "cuda:0", f"the built-in model uses one card; the other {others} stay idle" * (others > 0), (best,)
        )
    if usable:
        return Device("cuda:0", "; ".join(left), usable)
    reason = f"no card here can be used: {'; '.join(left)}" if left else machine.cards.note or "no card"
    if rig.cards.devices != "auto":
        raise MachineError(f"{loaded.where('cards.devices')}: {reason}", hint='write devices = "cpu" or another card')
    if rig.model.path != BUILTIN:
        raise MachineError(
            f"{loaded.where('model.path')}: {rig.model.path} needs a card, and {reason}",
            hint='to serve it on the CPU, slowly, write devices = "cpu" in [cards]',
        )
    return Device("cpu", f"the built-in model runs on the CPU: {reason}")


def machine_differences(loaded: LoadedRig, machine: Machine) -> list[str]:
    """Sentences on what changed for the worse since [machine] was written, and on who holds memory of the cards."""
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
    for card in usable_of(loaded.rig, machine):
        held = sum(process.used_bytes or 0 for process in card.processes)
        if held >= OTHERS_BYTES:
            who = ", ".join(f"process {process.pid} {process.name}".rstrip() for process in card.processes)
            lines.append(f"card {card.index}: others hold {format_size(held)} of its memory ({who}): less for experts")
    return lines


def _at(loaded: LoadedRig, dotted: str, says: str, *, allowed: str = "", hint: str = "") -> Problem:
    return Problem(where=loaded.where(dotted), key=dotted, says=says, allowed=allowed, hint=hint)
