"""Which windows and chunks a rig can meet, the likeliest first: they are recorded before anybody waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, zip_longest
from typing import Final

import torch

from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.chunk_shapes import ChunkShape
from appliance.model.qwen4exp.device.pipeline import Launcher
from appliance.model.qwen4exp.device.prompt_turn import MOST_SPAN_ROWS
from appliance.model.qwen4exp.device.shapes import StepShape
from appliance.model.qwen4exp.device.tables import BUCKETS, MOST_ROWS, bucket_of
from appliance.model.qwen4exp.device.work import Draws

# Of a chat's usual settings; greedy; of wide rules, which few ask for.
_DRAWS: Final = (Draws(wide=False, greedy=False), Draws(wide=False, greedy=True), Draws(wide=True, greedy=False))

# Captured before anybody is served, however long they take to compile: what an office's first conversation needs, that
# is a prompt's end and then windows alone, however it draws. The others come in idle moments, even where they would
# take no time now: a start that goes on past what an earlier one compiled comes to what none did.
_FIRST: Final = 2 * len(_DRAWS)
# Graphs take memory of a card beside its plan; from here on the rest waits until a window needs it.
_SPARE_BYTES: Final = 1 << 30


class Captures:
    """Of a model that runs no window while one is made."""

    def __init__(self, plan: LoadPlan, launcher: Launcher, *, drafts: bool) -> None:
        """None yet; `drafts`: whether the model can."""
        devices = [torch.device(name) for name in plan.devices or (plan.device,)]
        self.possible = devices[0].type == "cuda" and not plan.plain
        self._launcher, self._cards = launcher, set(devices)
        self._coming: Iterator[StepShape | ChunkShape] = iter(())
        if self.possible:
            self._coming = beside(coming(plan, drafts=drafts), launcher.chunk_shapes())

    def first(self) -> None:
        """What a first conversation needs, and no more, whatever is compiled."""
        for _ in range(_FIRST):
            if not self.one():
                return

    def one(self) -> bool:
        """One more; False when none is left, or no memory for it."""
        for shape in self._coming:
            if self._launcher.missing(shape):
                if min(torch.cuda.mem_get_info(card)[0] for card in self._cards) < _SPARE_BYTES:
                    return False
                self._launcher.prepare(shape)
                return True
        return False


def beside(windows: Iterator[StepShape], chunks: Iterator[ChunkShape]) -> Iterator[StepShape | ChunkShape]:
    """Windows and chunks in turns, after the windows that are captured before anybody is served.

    Chunks that are not recorded are launched one by one, while a window has to be captured first.
    """
    yield from islice(windows, _FIRST)
    for shape in chain.from_iterable(zip_longest(windows, chunks)):
        if shape is not None:
            yield shape


def coming(plan: LoadPlan, *, drafts: bool) -> Iterator[StepShape]:
    """Every shape once.

    One conversation with all its drafts, and a prompt's end; a short prompt, which is no chunk; conversations with all
    their drafts, by their number; prompts alone; a prompt beside conversations; then any other window; at last those
    with fewer drafts.
    """
    most = plan.draft_max if drafts else 0
    told: set[StepShape] = set()
    usual = [_together(slots, most, plan) for slots in range(1, plan.slots + 1)]
    few = [(_together(slots, steps, plan), steps) for steps in range(most) for slots in range(1, plan.slots + 1)]
    pairs = chain(
        ((pair, most, False) for pair in usual[:1]),
        ((pair, most, chunk) for pair, chunk in _prompts(most, plan) if chunk),
        [(_reading(1, plan), most, False)],
        ((pair, most, False) for pair in usual[1:]),
        ((_reading(slots, plan), 0, False) for slots in range(1, plan.slots + 1)),
        ((pair, most, chunk) for pair, chunk in _prompts(most, plan)),
        ((pair, most, False) for pair in _others(plan)),
        ((pair, steps, False) for pair, steps in few),
    )
    for (rows, spans), steps, chunk in pairs:
        for draws in _DRAWS:
            shape = StepShape(rows=rows, spans=spans, steps=steps, draws=draws, chunk=chunk)
            if shape not in told:
                told.add(shape)
                yield shape


def _together(slots: int, drafts: int, plan: LoadPlan) -> tuple[int, int]:
    """Buckets of rows and spans of so many conversations that decode."""
    return bucket_of(min(slots * (1 + drafts), _most_rows(plan))), bucket_of(slots)


def _reading(slots: int, plan: LoadPlan) -> tuple[int, int]:
    """The same of so many that read."""
    return bucket_of(min(slots * MOST_SPAN_ROWS, _most_rows(plan))), bucket_of(slots)


def _prompts(drafts: int, plan: LoadPlan) -> Iterator[tuple[tuple[int, int], bool]]:
    """A prompt's last chunk, whose layers have run; then a prompt beside none, one and more conversations."""
    if plan.chunk_rows:
        yield (1, 1), True
    for slots in range(plan.slots):
        rows = min(slots * (1 + drafts), _most_rows(plan) - 1)
        first, last = bucket_of(rows + 1), bucket_of(min(rows + MOST_SPAN_ROWS, _most_rows(plan)))
        for bucket in reversed(BUCKETS):
            if first <= bucket <= last:
                yield (bucket, bucket_of(slots + 1)), False


def _others(plan: LoadPlan) -> Iterator[tuple[int, int]]:
    most = bucket_of(plan.slots)
    for rows in BUCKETS:
        for spans in BUCKETS:
            if spans <= most and spans <= rows <= bucket_of(min(_most_rows(plan), spans * MOST_SPAN_ROWS)):
                yield rows, spans


def _most_rows(plan: LoadPlan) -> int:
    return min(MOST_ROWS, plan.max_window_rows)
