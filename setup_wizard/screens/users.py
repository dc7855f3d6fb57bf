"""Owns the step of the users: how many together, how long a conversation, drafts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget
from textual.widgets import Static

from setup_wizard.screens.base import Step
from setup_wizard.screens.widgets import KeyChoice, Line

LINES = ("serving.parallel", "context.max_tokens", "serving.draft_max", "serving.queue")


class UsersStep(Step):
    """Who is served together."""

    NUMBER, NAME = 5, "users"
    ABOUT: ClassVar[str] = "More conversations and longer ones take memory from the cache; the plan says how much."

    def body(self) -> Iterable[Widget]:
        """Numbers to type, drafts to choose."""
        draft, judged = self.setup.draft, self.setup.judged
        if draft is None or judged is None:
            return
        for key in LINES:
            yield Line(key, draft.value(key))
        yield Static("serving.batch_mtp", classes="caption", markup=False)
        yield KeyChoice("serving.batch_mtp", draft.value("serving.batch_mtp"), card=judged.on_card)
