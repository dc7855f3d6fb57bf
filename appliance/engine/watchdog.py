"""Notices an engine thread that no longer comes back from a window; torch-free."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# Rows that a window may compute within the plain patience; one with more gets proportionally longer.
_ROWS_PER_PATIENCE = 64


def patience_s(rows: int, watchdog_s: float) -> float:
    """How long a window of `rows` rows may take before it counts as lost."""
    return watchdog_s * max(1.0, rows / _ROWS_PER_PATIENCE)


class Watchdog:
    """A thread that looks at the clock while a window runs; it cannot end the stuck call, only report it."""

    def __init__(self, watchdog_s: float, *, on_silence: Callable[[str], None]) -> None:
        """Not running yet; `on_silence` is called once, on the watchdog's thread, with a sentence."""
        self._watchdog_s = watchdog_s
        self._on_silence = on_silence
        self._window: tuple[int, float] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-watchdog", daemon=True)

    def start(self) -> None:
        """Starts looking."""
        self._thread.start()

    def stop(self) -> None:
        """Stops looking; safe to repeat."""
        self._stop.set()

    def begin(self, rows: int) -> None:
        """A window of `rows` rows starts now."""
        self._window = (rows, time.monotonic())

    def end(self) -> None:
        """The window is over."""
        self._window = None

    def _run(self) -> None:
        while not self._stop.wait(min(1.0, self._watchdog_s / 4)):
            window = self._window
            if window is None:
                continue
            rows, began_s = window
            silent_s = time.monotonic() - began_s
            if silent_s > patience_s(rows, self._watchdog_s):
                self._on_silence(
                    f"the engine has been silent for {silent_s:.1f} s in a window of {rows} rows, more than the "
                    f"{patience_s(rows, self._watchdog_s):.1f} s allowed; the process must be restarted"
                )
                return
