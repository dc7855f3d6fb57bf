"""The bounded line of waiting requests: filled by the event loop, emptied by the engine's thread, in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from appliance.errors import QueueFullError
from appliance.scheduler.session import Session


class RequestQueue:
    """Requests without a slot. Thread-safe."""

    def __init__(self, limit: int, *, slots: int) -> None:
        """Accepts as many requests as there are slots free, and `limit` beyond them."""
        self.limit = limit
        self._slots = slots
        self._running = 0
        self._average_s = 0.0
        self._waiting: deque[Session] = deque()
        self._changed = threading.Condition()
        self._woken = False

    def put(self, session: Session) -> None:
        """Appends a request.

        Raises:
            QueueFullError: as many wait as may; retry_after_s estimates when one of them will have started.
        """
        with self._changed:
            if self._running + len(self._waiting) >= self._slots + self.limit:
                retry_s = round(self._average_s * (1 + len(self._waiting)) / self._slots)
                raise QueueFullError(
                    f"{len(self._waiting)} requests wait already, the limit is {self.limit}; try again later",
                    retry_after_s=min(60, max(1, retry_s)),
                )
            self._waiting.append(session)
            self._woken = True
            self._changed.notify()

    def wake(self) -> None:
        """Lets a sleeping `wait` return: a cancel, a drain or a stop wants attention."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    @property
    def called(self) -> bool:
        """Whether `put` or `wake` was called since the last `wait` or `calm`; costs nothing."""
        return self._woken

    def calm(self) -> None:
        """What was called for until now is looked at next."""
        with self._changed:
            self._woken = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleeps until `put` or `wake` was called since the last `wait` or `calm`; False: it was not, until then."""
        with self._changed:
            called = self._changed.wait_for(lambda: self._woken, timeout_s)
            self._woken = False
            return called

    def start_next(self, fits: Callable[[Session], bool]) -> Session | None:
        """Takes the first request if it fits; nobody overtakes it, so that a long request cannot starve."""
        with self._changed:
            if not self._waiting or not fits(self._waiting[0]):
                return None
            self._running += 1
            return self._waiting.popleft()

    def ended(self, served_s: float) -> None:
        """Notes that a request which had started is over, `served_s` after its start."""
        with self._changed:
            self._running -= 1
            self._average_s += (served_s - self._average_s) / 8

    def take_cancelled(self, *, everyone: bool = False) -> list[Session]:
        """Removes the waiting requests that were cancelled, or all."""
        with self._changed:
            gone = [session for session in self._waiting if everyone or session.cancelled]
            if gone:
                self._waiting = deque(session for session in self._waiting if session not in gone)
            return gone

    def picture(self) -> tuple[int, float | None]:
        """How many wait, and since when the first does (monotonic seconds; None if nobody)."""
        with self._changed:
            return len(self._waiting), self._waiting[0].queued_s if self._waiting else None
