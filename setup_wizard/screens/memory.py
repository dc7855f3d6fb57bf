"""Owns the step of memory: cache, reserve, the n-gram table, keys and values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget
from textual.widgets import Static

from setup_wizard.fields import available
from setup_wizard.screens.base import Step
from setup_wizard.screens.widgets import KeyChoice, Line

LINES = ("experts.cache", "cards.vram_reserve", "experts.ram")
CHOICES = ("ngram.home", "context.kv", "context.kv_home", "experts.misses")


class MemoryStep(Step):
    """What is where."""

    NUMBER, NAME = 4, "memory"
    ABOUT: ClassVar[str] = "Empty or auto leaves a value to the planner, at every start anew."

    def body(self) -> Iterable[Widget]:
        """Sizes to type, places to choose."""
        draft, judged = self.setup.draft, self.setup.judged
        if draft is None or judged is None:
            return
        card = judged.on_card
        for key in LINES:
            why_not = "" if available(key, card=card) else "auto; others are not available in this version"
            yield Line(key, draft.value(key), why_not=why_not)
        for key in CHOICES:
            yield Static(key, classes="caption", markup=False)
            yield KeyChoice(key, draft.value(key), card=card)
