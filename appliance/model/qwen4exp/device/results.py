"""The host's memory of a lane's window: the plan that goes out, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.model.interface import Glance, no_glance
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.stage import Stage
from kernels.rows import SpanPlan, pack_plan, plan_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a step sent back.

    Attributes:
        ids, bad: of each row of the bucket.
        rows, kept: of each span.
        draft_counts, drafts, probabilities: of each slot.
    """

    ids: list[int]
    bad: list[int]
    rows: list[int]
    kept: list[int]
    draft_counts: list[int]
    drafts: list[list[int]]
    probabilities: list[list[float]]


class LaneMemory:
    """Pinned where a card copies; written again only after the window that it served."""

    def __init__(self, last: Stage, plan: LoadPlan) -> None:
        """Of one lane; `last` is the stage that draws."""
        self._cuda = last.device.type == "cuda"
        self._slots = plan.slots + 1
        self._most = last.slots.drafts.shape[1]
        self._plans: dict[int, torch.Tensor] = {}
        self._results: dict[int, torch.Tensor] = {}
        self._views: dict[int, tuple[NDArray[np.int32], NDArray[np.float32]]] = {}
        self._done: torch.cuda.Event | None = None
        self._busy = False
        if self._cuda:
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def plan(self, rows: int, spans: Sequence[SpanPlan]) -> torch.Tensor:
        """The plan of a window, for every stage to copy."""
        if self._busy and self._done is not None:
            self._done.synchronize()
        held = self._plans.get(rows)
        if held is None:
            held = self._plans[rows] = torch.zeros(plan_size(rows), dtype=torch.int32, pin_memory=self._cuda)
        pack_plan(spans, bucket=rows, out=held.numpy())
        return held

    def held(self, rows: int) -> torch.Tensor:
        """The plan that `plan` wrote last for windows of that bucket."""
        return self._plans[rows]

    def fetch(self, rows: int, result: torch.Tensor) -> None:
        """Copies the last stage's result back; on its stream."""
        held = self._results.get(rows)
        if held is None:
            held = self._results[rows] = torch.zeros_like(result, device="cpu", pin_memory=self._cuda)
            whole = held.numpy()
            self._views[rows] = whole, whole[4 * rows + self._slots * (1 + self._most) :].view(np.float32)
        held.copy_(result, non_blocking=True)
        self.mark()

    def mark(self) -> None:
        """Here the window's work ends; on the last stage's stream."""
        self._busy = True
        if self._done is not None:
            self._done.record()

    @property
    def computing(self) -> bool:
        """Whether the window's work has not ended yet; asks the card."""
        return self._busy and self._done is not None and not self._done.query()  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Waits for what `fetch` brings."""
        if self._done is not None:
            self._done.synchronize()
        self._busy = False

    def read(self, rows: int, *, first: Glance = no_glance) -> Found:
        """What `fetch` brought; `first` may send the lane's next window."""
        # Lists are cut, not tensors: the device waits, and every view of a tensor costs a microsecond.
        most, (whole, ends) = self._most, self._views[rows]
        found: list[int] = whole.tolist()
        shares: list[float] = ends.tolist()
        # From here on the memory may be written again.
        first(found[:rows], found[rows : 2 * rows], found[2 * rows : 3 * rows])
        counts = 4 * rows + self._slots
        drafts = range(0, self._slots * most, most)
        return Found(
            ids=found[:rows],
            bad=found[rows : 2 * rows],
            rows=found[2 * rows : 3 * rows],
            kept=found[3 * rows : 4 * rows],
            draft_counts=found[4 * rows : counts],
            drafts=[found[counts + at : counts + at + most] for at in drafts],
            probabilities=[shares[at : at + most] for at in drafts],
        )
