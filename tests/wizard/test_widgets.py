"""The fields by themselves."""

from __future__ import annotations

import asyncio

from textual.app import App, ComposeResult

from setup_wizard.screens.card_widgets import Boundary, CardPicker
from setup_wizard.screens.widgets import Answered, Choice, Row
from tests.builders.machines import card


def test_the_boundary_moves_with_arrows_and_never_leaves_a_card_empty() -> None:
    heard: list[list[int]] = []

    class Alone(App[None]):
        def compose(self) -> ComposeResult:
            yield Boundary([12, 24], layers=48, cards=[card(1), card(0), card(2)])

        def on_answered(self, event: Answered) -> None:
            heard.append(event.value)

    async def run() -> None:
        app = Alone()
        async with app.run_test(size=(80, 24)) as pilot:
            app.query_one(Boundary).focus()
            await pilot.press("right", "shift+left", "down", "right", *["shift+left"] * 9)
            assert "card 0: layers 9 to 9" in str(app.query_one(Boundary).content)

    asyncio.run(run())
    assert heard[:3] == [[13, 24], [9, 24], [9, 25]]
    assert heard[-1] == [9, 10]


def test_cards_are_taken_in_the_order_of_stages_and_given_back() -> None:
    heard: list[object] = []
    rows = [Row("auto", "automatic"), *(Row([f"GPU-{n}"], f"card {n}") for n in range(3)), Row("cpu", "the CPU alone")]

    class Alone(App[None]):
        def compose(self) -> ComposeResult:
            yield CardPicker(rows, "auto")

        def on_choice_chosen(self, event: Choice.Chosen) -> None:
            heard.append(event.choice.value)

    async def run() -> None:
        app = Alone()
        async with app.run_test(size=(80, 24)) as pilot:
            picker = app.query_one(CardPicker)
            picker.focus()
            await pilot.press("down", "down", "enter", "up", "enter")
            labels = [str(picker.get_option_at_index(number).prompt) for number in range(5)]
            assert [label[2:5] for label in labels] == ["( )", "(2)", "(1)", "( )", "( )"]
            await pilot.press("down", "enter", "up", "enter", "end", "enter")

    asyncio.run(run())
    assert heard == [["GPU-1"], ["GPU-1", "GPU-0"], ["GPU-0"], "auto", "cpu"]
