"""Owns waiting no longer than said: a probe that hangs becomes a sentence."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Late(TimeoutError):
    """The work was not done in time; it goes on in its thread and its result is dropped."""


def within(deadline_s: float, work: Callable[[], T]) -> T:
    """The result of the work, done in a thread that does not keep the process alive.

    Raises:
        Late: it took longer.
        Exception: whatever the work raised.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # handed to the caller
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(deadline_s)
    if errors:
        raise errors[0]
    if not results:
        raise Late(f"no answer within {deadline_s:g} s")
    return results[0]
