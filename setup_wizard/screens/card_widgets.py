"""Owns the fields of the cards' step: which cards in which order, and the boundaries between their layers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Static

from appliance.rig.cards import Card
from setup_wizard.fields import question
from setup_wizard.screens.widgets import Answered, Choice, Helped, Row


class CardPicker(Choice):
    """Automatic, some cards, or none. A taken card shows its place in the order of stages; Enter takes and gives back.

    The value is what the rig holds: "auto", "cpu", or UUIDs in stage order.
    """

    def __init__(self, rows: Sequence[Row], value: Any) -> None:
        words = question("cards.devices").help() + " Enter on a card adds it as the next stage, or takes it out."
        super().__init__("cards.devices", rows, value, help_words=words)

    def take(self, number: int) -> Any:
        """The value once a row was taken."""
        row = self.rows[number]
        if isinstance(row.value, str):
            return row.value
        (uuid,) = row.value
        chosen = list(self.value) if isinstance(self.value, list) else []
        chosen = [one for one in chosen if one != uuid] if uuid in chosen else [*chosen, uuid]
        return chosen or "auto"

    def mark(self, row: Row) -> str:
        """A card's place among the stages, an x for a word."""
        if isinstance(row.value, str) or not isinstance(self.value, list):
            return super().mark(row)
        (uuid,) = row.value
        return str(self.value.index(uuid) + 1) if uuid in self.value else " "


class Boundary(Static, Helped, can_focus=True):
    """Where one card's layers end and the next one's begin; arrows move it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Fewer layers"),
        Binding("right", "move(1)", "More layers"),
        Binding("shift+left", "move(-4)", show=False),
        Binding("shift+right", "move(4)", show=False),
        Binding("up", "pick(-1)", "Boundary before", show=False),
        Binding("down", "pick(1)", "Boundary after", show=False),
    ]

    def __init__(self, split: Sequence[int], *, layers: int, cards: Sequence[Card]) -> None:
        super().__init__(id="boundary", markup=False)
        self.split, self.count, self.picked = list(split), layers, 0
        self.cards = tuple(cards)
        self._told: tuple[str, ...] = ("",) * len(self.cards)
        self.help_words = question("cards.layer_split").help() + " Left and right move it, up and down pick another."

    def on_mount(self) -> None:
        """Draws."""
        self.update(self.drawn())

    def drawn(self) -> str:
        """The layers of each card a line, and a bar with `|` at each boundary, `#` at the one at hand."""
        bounds = [0, *self.split, self.count]
        says = "\n".join(
            f"card {card.index}: layers {first} to {last - 1}{told}"
            for card, (first, last), told in zip(self.cards, itertools.pairwise(bounds), self._told, strict=True)
        )
        marks = {layer: "#" if n == self.picked else "|" for n, layer in enumerate(self.split)}
        return says + "\n" + "".join(marks.get(layer, "") + "-" for layer in range(self.count))

    def tell(self, words: Sequence[str]) -> None:
        """Shows some words after each card's layers."""
        self._told = tuple(words)
        self.update(self.drawn())

    def action_move(self, step: int) -> None:
        """Moves the boundary at hand; every card keeps a layer."""
        bounds = [0, *self.split, self.count]
        least, most = bounds[self.picked] + 1, bounds[self.picked + 2] - 1
        self.split[self.picked] = max(least, min(most, self.split[self.picked] + step))
        self.update(self.drawn())
        self.post_message(Answered("cards.layer_split", list(self.split)))

    def action_pick(self, step: int) -> None:
        """Takes another boundary in hand."""
        self.picked = max(0, min(len(self.split) - 1, self.picked + step))
        self.update(self.drawn())
