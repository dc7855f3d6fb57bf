"""Owns the step of the cards: which compute, and where one card's layers end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget
from textual.widgets import Static

from appliance.planning.sketch import auto_split
from appliance.rig.judge import unusable
from setup_wizard.draft import Answer, Draft, judged
from setup_wizard.fields import question
from setup_wizard.screens.base import Step
from setup_wizard.screens.widgets import Boundary, Choice, Row
from setup_wizard.words import card_words


class CardsStep(Step):
    """Which cards compute."""

    NUMBER, NAME = 3, "cards and layers"
    ABOUT: ClassVar[str] = "Which cards compute; the plan below says what each choice gives."

    def body(self) -> Iterable[Widget]:
        """A row for each way, and the boundary where several cards compute."""
        draft = self.setup.draft
        if draft is None:
            return
        cards = draft.machine.cards.cards
        if not cards:
            yield Static(f"{draft.machine.cards.note or 'there is no card'}\nThe CPU computes.", markup=False)
        devices = draft.value("cards.devices") or "auto"
        yield Choice("cards.devices", rows(draft), devices, help_words=question("cards.devices").help())
        if isinstance(devices, list) and len(devices) > 1:
            budgets = [card.free_bytes or 0 for card in cards if card.uuid in devices or card.index in devices]
            layers = draft.model.spec.trunk_layers
            split = draft.value("cards.layer_split")
            yield Boundary(split if isinstance(split, list) else auto_split(budgets, layers), layers=layers)

    def on_choice_chosen(self, event: Choice.Chosen) -> None:
        """Takes the cards; the layers are then the planner's until they are moved."""
        self.setup.answer(Answer("cards.devices", event.row.value))
        if isinstance(event.row.value, list) and len(event.row.value) > 1:
            self.setup.go(self.setup.step)


def rows(draft: Draft) -> list[Row]:
    """Automatic, each card, all of them, none; what `strata check` refuses says so and cannot be taken."""
    cards = draft.machine.cards.cards
    found = [Row("auto", "automatic" if cards else "automatic: the CPU, for the built-in model only")]
    for card in cards:
        reason = unusable(card) or ""
        found.append(Row([card.uuid], f"card {card.index}: {card_words(card)}", reason))
    if len(cards) > 1:
        every = [card.uuid for card in cards]
        split = Answer("cards.layer_split", None)
        problems = judged(draft.answer(Answer("cards.devices", every), split)).problems
        refused = any("not available in this version" in problem for problem in problems)
        reason = "not available in this version" if refused else ""
        found.append(Row(every, f"all {len(cards)} cards, layer by layer", reason))
    return [*found, Row("cpu", "the CPU alone")]
