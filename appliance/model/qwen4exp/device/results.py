"""The host's memory of a lane's window: the plan that goes out, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.stage import Stage
from kernels.rows import SpanPlan, pack_plan, plan_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a step sent back.

    Attributes:
        ids, bad: of each row of the bucket.
        kept: of each span.
        draft_counts, drafts, probabilities: of each slot.
    """

    ids: list[int]
    bad: list[int]
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
        self._done: torch.cuda.Event | None = None
        if self._cuda:
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def plan(self, rows: int, spans: Sequence[SpanPlan]) -> torch.Tensor:
        """The plan of a window, for every stage to copy."""
        if self._done is not None:
            self._done.synchronize()
        held = self._plans.get(rows)
        if held is None:
            held = self._plans[rows] = torch.zeros(plan_size(rows), dtype=torch.int32, pin_memory=self._cuda)
        pack_plan(spans, bucket=rows, out=held.numpy())
        return held

    def fetch(self, rows: int, result: torch.Tensor) -> None:
        """Copies the last stage's result back; on its stream."""
        held = self._results.get(rows)
        if held is None:
            held = self._results[rows] = torch.zeros_like(result, device="cpu", pin_memory=self._cuda)
        held.copy_(result, non_blocking=True)
        self.mark()

    def mark(self) -> None:
        """Here the window's work ends; on the last stage's stream."""
        if self._done is not None:
            self._done.record()

    def wait(self, rows: int) -> Found:
        """What `fetch` brought."""
        if self._done is not None:
            self._done.synchronize()
        # Lists are cut, not tensors: the device waits, and every view of a tensor costs a microsecond.
        held, most = self._results[rows], self._most
        found: list[int] = held.tolist()
        counts = 3 * rows + self._slots
        shares: list[float] = held[counts + self._slots * most :].view(torch.float32).tolist()
        drafts = range(0, self._slots * most, most)
        return Found(
            ids=found[:rows],
            bad=found[rows : 2 * rows],
            kept=found[2 * rows : 3 * rows],
            draft_counts=found[3 * rows : counts],
            drafts=[found[counts + at : counts + at + most] for at in drafts],
            probabilities=[shares[at : at + most] for at in drafts],
        )
