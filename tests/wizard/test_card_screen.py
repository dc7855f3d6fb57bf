"""The step of the cards: which compute, in which order, and the boundaries between them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from textual.pilot import Pilot

from appliance.models.catalogue import read_catalogue
from appliance.models.outline import outline
from setup_wizard.app import SetupApp
from setup_wizard.draft import Answer, Model
from setup_wizard.screens.card_widgets import Boundary, CardPicker
from tests.builders.machines import BOXES
from tests.wizard.driving import drive, text, to

TWO = "two 16 GB cards on x8"


def given(name: str, size: str = "iq3-s") -> Model:
    found = read_catalogue().size(size)
    return Model(path=f"/m/{name}.gguf", spec=outline(found))


def test_several_cards_are_taken_and_the_boundary_is_dragged(rig: Path) -> None:
    """SPLIT-02, CFG-19: the order is as they are taken; every move is priced at once, in the cards' own bars."""

    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        app.serve(given("m"))
        await to(app, pilot, 3)
        assert app.judged is not None
        assert "2 x NVIDIA GeForce RTX 5060 Ti" in text(app, "#lines")
        app.screen.query_one(CardPicker).focus()
        await pilot.press("home", "down", "enter")
        await pilot.pause()
        assert app.draft is not None
        assert "on NVIDIA GeForce RTX 5060 Ti" in text(app, "#lines")
        app.screen.query_one(CardPicker).focus()
        await pilot.press("home", "down", "enter")
        await pilot.pause()
        assert app.draft.value("cards.devices") == [card.uuid for card in BOXES[TWO].cards.cards][::-1]
        assert "card 1 layers 0-" in text(app, "#lines")
        boundary = app.screen.query_one(Boundary)
        before = boundary.split[0]
        boundary.focus()
        await pilot.press(*["shift+left"] * 3)
        await pilot.pause()
        assert app.draft.value("cards.layer_split") == [before - 12]
        assert "slower" in text(app, "#change")
        assert "the slowest card takes" in text(app, "#lines")

    drive(rig, BOXES[TWO], steps)


def test_a_boundary_moved_under_automatic_states_the_cards_too(rig: Path) -> None:
    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        app.serve(given("m"))
        app.answer(Answer("cards.devices", "auto"))
        await to(app, pilot, 3)
        app.screen.query_one(Boundary).focus()
        await pilot.press("right")
        await pilot.pause()
        assert app.judged is not None
        assert app.judged.accepted, app.judged.problems
        assert app.draft is not None
        assert len(app.draft.value("cards.devices")) == 2
        assert len(app.draft.value("cards.layer_split")) == 1

    drive(rig, BOXES[TWO], steps)


def test_an_old_card_is_shown_with_the_reason_and_cannot_be_taken(rig: Path) -> None:
    """SPLIT-07"""
    here = BOXES[TWO]
    first, last = here.cards.cards
    old = dataclasses.replace(here.cards, cards=(dataclasses.replace(first, capability="7.0"), last))

    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        await to(app, pilot, 3)
        rows = app.screen.query_one(CardPicker).rows
        assert "its compute capability is 7.0" in rows[1].why_not
        assert rows[2].why_not == ""

    drive(rig, dataclasses.replace(here, cards=old), steps)
