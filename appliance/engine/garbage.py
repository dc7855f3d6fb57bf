"""When Python looks for garbage: right after a window was sent, so that no window's end waits for it; torch-free."""

from __future__ import annotations

import gc
from typing import Final

# Objects made since the last look; then how many looks of one kind come before one that goes further back. The last
# one looks at everything that is not there for good, which takes milliseconds.
_YOUNG: Final = 2000
_MIDDLE: Final = 10
_OLD: Final = 100


class Garbage:
    """Of the whole process; used by the engine's thread.

    Whichever thread makes the object too many looks for garbage, and keeps the interpreter until it is done: the event
    loop would do so when a window has just ended.
    """

    def tidy(self) -> None:
        """A window was sent: looks if it is time."""
        gc.disable()
        young, middle, old = gc.get_count()
        if young > _YOUNG:
            gc.collect(0 if middle < _MIDDLE else 1 if old < _OLD else 2)

    def rest(self) -> None:
        """No window comes for now: Python looks when it likes."""
        gc.enable()
