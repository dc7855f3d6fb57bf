"""Whether a window fits the slots that it names; torch-free, the same words on every device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from appliance.errors import EngineFault
from appliance.model.window import Window


class Held(Protocol):
    """What the host knows of the slots."""

    @property
    def lengths(self) -> Sequence[int]:
        """Committed tokens of each slot."""
        ...

    def room(self, slot: int) -> int:
        """Tokens the slot's pages hold."""
        ...


def check_window(window: Window, held: Held, *, vocabulary: int, ahead: bool = False) -> None:
    """Checks a window before anything is computed; `ahead`: there may be spans whose tokens only the device knows.

    Raises:
        EngineFault: no span, or one that does not continue its slot, has no pages, or holds an unknown token.
    """
    seen: set[int] = set()
    slots = len(held.lengths)
    if not window.spans:
        raise EngineFault("a window needs at least one span")
    for span in window.spans:
        if not 0 <= span.slot < slots or span.slot in seen:
            raise EngineFault(f"span {span.slot}: no such slot, or twice in a window; there are {slots}")
        seen.add(span.slot)
        if ahead and not span.tokens and span.start == -1 and held.room(span.slot):
            continue
        have, room = held.lengths[span.slot], held.room(span.slot)
        if span.start != have:
            raise EngineFault(f"slot {span.slot}: span starts at {span.start}, the slot holds {have} tokens")
        if not span.tokens or span.start + len(span.tokens) > room:
            raise EngineFault(
                f"slot {span.slot}: {len(span.tokens)} rows from {span.start}, pages hold {room}; needed at least "
                "one row and pages for all"
            )
        if min(span.tokens) < 0 or max(span.tokens) >= vocabulary:
            raise EngineFault(f"slot {span.slot}: a token id is outside 0 to {vocabulary - 1}")
