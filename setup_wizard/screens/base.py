"""Owns what every step has: title, body, the help of the field at hand, the plan with what a change costs, the keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import DescendantFocus
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer, Static

from setup_wizard.draft import Answer
from setup_wizard.screens.widgets import Answered
from setup_wizard.words import change, plan_lines

if TYPE_CHECKING:
    from setup_wizard.app import SetupApp

OF = 8


class Step(Screen[None]):
    """One step; `body` is what distinguishes it."""

    NUMBER: ClassVar[int] = 0
    NAME: ClassVar[str] = ""
    ABOUT: ClassVar[str] = ""
    PLANS: ClassVar[bool] = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+n", "next", "Next", priority=True),
        Binding("escape", "back", "Back"),
        Binding("ctrl+r", "recommend", "Recommended", priority=True),
    ]

    @property
    def setup(self) -> SetupApp:
        """The app."""
        return cast("SetupApp", self.app)

    @property
    def shown(self) -> bool:
        """Whether its widgets are there: slow work may end after the step was left."""
        return self.is_mounted and self in self.app.screen_stack

    def compose(self) -> ComposeResult:
        """Title, body, help, plan, keys."""
        yield Static(f"Strata setup - step {self.NUMBER} of {OF} - {self.NAME}", id="title", markup=False)
        with VerticalScroll(id="body", can_focus=False):
            yield from self.body()
        yield Static(self.ABOUT, id="help", markup=False)
        if self.PLANS:
            with VerticalScroll(id="plan"):
                yield Static("", id="change", markup=False)
                yield Static("", id="lines", markup=False)
        yield Footer()

    def body(self) -> Iterable[Widget]:
        """The step's own widgets."""
        return ()

    def on_mount(self) -> None:
        """Shows the plan, and the sentence for a small window where the step begins in one."""
        self.show_plan()
        self.app.call_after_refresh(lambda: self.setup.fit(self.app.size))

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Shows the help of the field at hand."""
        says = getattr(event.widget, "help_words", "") or self.ABOUT
        self.query_one("#help", Static).update(says)

    def on_answered(self, event: Answered) -> None:
        """Takes an answer."""
        self.setup.answer(Answer(event.key, event.value))

    def show_plan(self) -> None:
        """The plan as it is now."""
        app = self.setup
        if not self.query("#lines") or app.judged is None or app.advice is None:
            return
        self.query_one("#change", Static).update(change(app.advice.judged, app.judged))
        self.query_one("#lines", Static).update("\n".join(plan_lines(app.judged)))

    def action_next(self) -> None:
        """The next step."""
        if self.setup.draft is not None:
            self.setup.go(self.setup.step + 1)

    def action_back(self) -> None:
        """The step before."""
        if self.setup.step:
            self.setup.go(self.setup.step - 1)

    def action_recommend(self) -> None:
        """Takes the recommendation again and shows it."""
        self.setup.forget()
        self.setup.go(self.setup.step)
