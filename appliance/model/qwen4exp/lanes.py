"""Computes separate conversations of a window at the same time, each on one thread from the first layer to the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

_Result = TypeVar("_Result")


class Lanes:
    """Threads that share nothing but weights: conversations meet in no operation, so none waits for another inside."""

    def __init__(self, count: int) -> None:
        """For so many threads, the caller's included."""
        self._count = count
        self._pool = ThreadPoolExecutor(count - 1, thread_name_prefix="lane") if count > 1 else None

    def cut(self, sizes: Sequence[int]) -> list[slice]:
        """Cuts a row of conversations into neighbours of about equal size; no cut is empty."""
        cuts: list[slice] = []
        first, left = 0, sum(sizes)
        for lane in range(self._count, 0, -1):
            stop, own = first, 0
            # The next one comes along while that brings this lane nearer to its share of what is left.
            while stop < len(sizes) and (lane == 1 or own == 0 or 2 * own + sizes[stop] <= 2 * left / lane):
                own += sizes[stop]
                stop += 1
            if stop > first:
                cuts.append(slice(first, stop))
            first, left = stop, left - own
        return cuts

    def run(self, function: Callable[[slice], _Result], cuts: Sequence[slice]) -> list[_Result]:
        """The function's result for each cut; the caller's thread takes the first."""

        def elsewhere(cut: slice) -> _Result:
            with torch.inference_mode():
                return function(cut)

        others = [self._pool.submit(elsewhere, cut) for cut in cuts[1:]] if self._pool else []
        first = [function(cut) for cut in cuts[:1]]
        return first + [other.result() for other in others]
