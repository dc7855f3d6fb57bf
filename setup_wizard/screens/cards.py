"""Owns the step of the cards: which compute, in which order, and where one card's layers end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from textual.widget import Widget
from textual.widgets import Static

from appliance.placed import StagePlan
from appliance.rig.warnings import card_problem
from setup_wizard.draft import Answer, Draft
from setup_wizard.screens.base import Step
from setup_wizard.screens.card_widgets import Boundary, CardPicker
from setup_wizard.screens.widgets import Answered, Choice, Row
from setup_wizard.words import card_words


class CardsStep(Step):
    """Which cards compute."""

    NUMBER, NAME = 3, "cards and layers"
    ABOUT: ClassVar[str] = "Which cards compute; the plan below says what each choice gives."

    def body(self) -> Iterable[Widget]:
        """A row for each card, and the boundaries where several compute."""
        draft = self.setup.draft
        if draft is None:
            return
        cards = draft.machine.cards.cards
        if not cards:
            yield Static(f"{draft.machine.cards.note or 'there is no card'}\nThe CPU computes.", markup=False)
        yield CardPicker(rows(draft), _uuids(draft))
        stages = self._stages()
        if len(stages) > 1:
            yield Static("cards.layer_split: left and right move a boundary", classes="caption", markup=False)
            yield Boundary(
                [stage.first_layer for stage in stages[1:]],
                layers=stages[-1].past_layer,
                cards=[stage.card for stage in stages],
            )

    def _stages(self) -> tuple[StagePlan, ...]:
        judged = self.setup.judged
        return () if judged is None or judged.placement is None else judged.placement.stages

    def show_plan(self) -> None:
        """The plan, and each card's part of a window beside its layers."""
        super().show_plan()
        plan = self.setup.judged.plan if self.setup.judged is not None else None
        for boundary in self.query(Boundary):
            if plan is not None and plan.cards == boundary.cards:
                boundary.tell(
                    [f", {1000 * time.window_s:.1f} ms a window, idle {time.idle:.0%}" for time in plan.times]
                )
            else:
                boundary.tell([""] * len(boundary.cards))

    def on_choice_chosen(self, event: Choice.Chosen) -> None:
        """Takes the cards; the layers are then the planner's until they are moved."""
        self.setup.answer(Answer("cards.layer_split", None), Answer("cards.devices", event.choice.value))
        self.setup.go(self.setup.step)

    def on_answered(self, event: Answered) -> None:
        """A boundary that was moved belongs to these cards in this order, so they are stated with it."""
        draft, found = self.setup.draft, [Answer(event.key, event.value)]
        if event.key == "cards.layer_split" and draft is not None and not isinstance(_uuids(draft), list):
            found.append(Answer("cards.devices", [stage.card.uuid for stage in self._stages()]))
        self.setup.answer(*found)


def rows(draft: Draft) -> list[Row]:
    """Automatic, each card, none; a card that cannot compute says so and cannot be taken (SPLIT-07)."""
    cards = draft.machine.cards.cards
    found = [Row("auto", "automatic" if cards else "automatic: the CPU, for the built-in model only")]
    found += [Row([card.uuid], f"card {card.index}: {card_words(card)}", card_problem(card) or "") for card in cards]
    return [*found, Row("cpu", "the CPU alone")]


def _uuids(draft: Draft) -> Any:
    """The rig's cards as it would hold them, numbers as UUIDs."""
    devices = draft.value("cards.devices") or "auto"
    if isinstance(devices, str):
        return devices
    names = {card.index: card.uuid for card in draft.machine.cards.cards}
    return [names.get(name, name) for name in devices]
