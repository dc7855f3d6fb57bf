"""Owns reading back the speeds that a rig's [machine] records, for a start or a plan that does not measure anew."""

from __future__ import annotations

import dataclasses

from appliance.rig.machine import Machine
from appliance.rig.machine_schema import CardTable, MachineTable
from appliance.rig.rates import CardRates, Rates, Reading


def recorded_rates(written: MachineTable, machine: Machine) -> Rates:
    """The speeds that were written down; peers by the UUIDs that the recorded numbers have now."""
    by_index = {card.index: card.uuid for card in machine.cards.cards}
    cards = tuple(_card(card, by_index) for card in written.card if card.uuid)
    return Rates(
        ram_gbps=_reading(written.ram_gbps),
        storage_gbps=_reading(written.storage_gbps),
        storage_rows_per_s=_reading(written.storage_rows_per_s),
        cards=cards,
        **({"cards_reason": ""} if cards else {}),
    )


def with_recorded(machine: Machine, written: MachineTable) -> Machine:
    """The machine with recorded speeds where nothing was measured now."""
    now, then = machine.rates, recorded_rates(written, machine)
    return dataclasses.replace(
        machine,
        rates=Rates(
            ram_gbps=_either(now.ram_gbps, then.ram_gbps),
            storage_gbps=_either(now.storage_gbps, then.storage_gbps),
            storage_rows_per_s=_either(now.storage_rows_per_s, then.storage_rows_per_s),
            cards=now.cards or then.cards,
            cards_reason=now.cards_reason if now.cards else then.cards_reason,
        ),
    )


def _card(card: CardTable, by_index: dict[int, str]) -> CardRates:
    to_card, from_card, in_place = card.link_gbps if card.link_gbps and len(card.link_gbps) == 3 else (None,) * 3
    return CardRates(
        uuid=card.uuid or "",
        to_card_gbps=_reading(to_card),
        from_card_gbps=_reading(from_card),
        in_place_gbps=_reading(in_place),
        vram_gbps=_reading(card.vram_gbps),
        tflops=_reading(card.tflops),
        peers=tuple(by_index[index] for index in card.peers if index in by_index),
    )


def _reading(value: float | None) -> Reading:
    return Reading() if value is None else Reading.of(value)


def _either(now: Reading, then: Reading) -> Reading:
    return then if now.value is None and then.value is not None else now
