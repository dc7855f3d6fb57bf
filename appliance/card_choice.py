"""Owns which of a machine's cards compute, and in which order, where the rig leaves it open."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from appliance.errors import DoesNotFitError
from appliance.placed import Placement
from appliance.rig.cards import Card
from appliance.rig.judge import Device

# A further card, or another order, is taken when the expected company gains this much by it.
WORTH_A_CARD = 1.05
WORTH_AN_ORDER = 1.03

PlaceOn = Callable[[Device], Placement]
RateOf = Callable[[Placement], float]


def best_cards(device: Device, place: PlaceOn, rate: RateOf, *, most: int) -> Placement:
    """The placement on the cards that are quickest together: as few of them as give it (SPLIT-06).

    More and longer conversations come before speed.

    Args:
        device: every card that may compute, in the order of the bus.
        place: places on some cards in some order.
        rate: tokens a second of a placement.
        most: cards that the model can be split over.

    Raises:
        DoesNotFitError: the model fits on no choice of cards; in the words of all of them together.
    """
    chosen: Placement | None = None
    tried: list[Placement] = []
    refused: DoesNotFitError | None = None
    for cards in _subsets(device.cards)[:most]:
        try:
            found = _best_order(cards, device, place, rate)
        except DoesNotFitError as error:
            refused = error
            continue
        tried.append(found)
        if chosen is None or _gains(found, chosen, rate):
            chosen = found
    if chosen is None:
        if refused is None:
            raise AssertionError("there was no card to choose from")
        raise refused
    return dataclasses.replace(chosen, notes=(*chosen.notes, *_left_out(device, chosen, tried, rate)))


def _subsets(cards: Sequence[Card]) -> list[tuple[Card, ...]]:
    """The roomiest card alone, the two roomiest, and so on; each in the order of the bus."""
    roomy = sorted(cards, key=lambda card: card.free_bytes or card.vram_bytes or 0, reverse=True)
    return [tuple(card for card in cards if card in roomy[:count]) for count in range(1, len(cards) + 1)]


def _best_order(cards: tuple[Card, ...], device: Device, place: PlaceOn, rate: RateOf) -> Placement:
    """Bus order, unless unequal cards are quicker the other way round (SPLIT-02)."""
    first = place(dataclasses.replace(device, cards=cards))
    if len(cards) == 1 or len({(card.name, card.free_bytes, card.link) for card in cards}) == 1:
        return first
    try:
        other = place(dataclasses.replace(device, cards=cards[::-1]))
    except DoesNotFitError:
        return first
    gain = rate(other) / rate(first)
    if _room(other) < _room(first) or gain < WORTH_AN_ORDER:
        return first
    order, bus = (", ".join(str(card.index) for card in some) for some in (cards[::-1], cards))
    note = f"cards in the order {order}: {gain - 1:.0%} quicker than {bus} (estimate)"
    return dataclasses.replace(other, notes=(*other.notes, note))


def _gains(found: Placement, chosen: Placement, rate: RateOf) -> bool:
    """Whether further cards are worth it: room first, then speed."""
    room = _room(found) - _room(chosen)
    return room > 0 or (room == 0 and rate(found) > WORTH_A_CARD * rate(chosen))


def _room(placement: Placement) -> int:
    return placement.parallel * placement.max_tokens


def _left_out(device: Device, chosen: Placement, tried: Sequence[Placement], rate: RateOf) -> list[str]:
    """Why further cards stay idle."""
    used = {stage.card.uuid for stage in chosen.stages}
    idle = [card for card in device.cards if card.uuid not in used]
    if not idle:
        return []
    names = ", ".join(f"{card.index} ({card.name})" for card in idle)
    words = f"card{'' if len(idle) == 1 else 's'} {names} left idle"
    more = next((found for found in tried if len(found.stages) == len(chosen.stages) + 1), None)
    if more is None:
        return [f"{words}: the model does not fit over more cards"]
    change = rate(more) / rate(chosen) - 1
    how = "slower" if change < 0 else "faster"
    return [f"{words}: with one more, four users together would be {abs(change):.0%} {how} (estimate)"]
