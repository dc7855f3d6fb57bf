"""The fields by themselves."""

from __future__ import annotations

import asyncio

from textual.app import App, ComposeResult

from setup_wizard.screens.widgets import Answered, Boundary


def test_the_boundary_moves_with_arrows_and_never_leaves_a_card_empty() -> None:
    heard: list[list[int]] = []

    class Alone(App[None]):
        def compose(self) -> ComposeResult:
            yield Boundary([12, 24], layers=48)

        def on_answered(self, event: Answered) -> None:
            heard.append(event.value)

    async def run() -> None:
        app = Alone()
        async with app.run_test(size=(80, 24)) as pilot:
            app.query_one(Boundary).focus()
            await pilot.press("right", "shift+left", "down", "right", *["shift+left"] * 9)
            assert "card 2: layers 9 to 9" in str(app.query_one(Boundary).content)

    asyncio.run(run())
    assert heard[:3] == [[13, 24], [9, 24], [9, 25]]
    assert heard[-1] == [9, 10]
