"""Owns the sentence for a window that is too small."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widgets import Static

COLUMNS, ROWS = 76, 22


class TooSmall(ModalScreen[None]):
    """Covers everything until the window is larger."""

    def compose(self) -> ComposeResult:
        """One sentence."""
        yield Static(f"make the window larger: {COLUMNS} columns and {ROWS} rows at least", id="small")


def is_small(size: Size) -> bool:
    """Whether the steps would not be readable."""
    return size.width < COLUMNS or size.height < ROWS
