"""Sends a window to its stages: graph by graph where the device has them, launch by launch where not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from appliance.model.host_gaps import HostGaps
from appliance.model.interface import nothing
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.loading import LoadedStages
from appliance.model.qwen4exp.device.trunk import Pending
from appliance.model.qwen4exp.device.work import Draws
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


class Launcher:
    """Owned by the engine's thread. Graphs are captured at their first use; the memory they saw never moves."""

    def __init__(self, parts: LoadedStages, plan: LoadPlan) -> None:
        self._parts = parts
        self._plan = plan
        self._device = parts.last_stage.device
        self._cuda = self._device.type == "cuda"
        self._graphs: dict[tuple[object, ...], torch.cuda.CUDAGraph] = {}
        self._logits: dict[int, torch.Tensor] = {}
        self._stream: torch.cuda.Stream | None = None
        self._plans: dict[int, torch.Tensor] = {}
        self._results: dict[int, torch.Tensor] = {}
        self.gaps = HostGaps()

    @property
    def captured(self) -> int:
        """Graphs so far."""
        return len(self._graphs)

    def send(self, rows: int, spans: Sequence[SpanPlan]) -> None:
        """Copies the host's plan to every stage."""
        held = self._plans.get(rows)
        if held is None:
            held = torch.zeros(plan_size(rows), dtype=torch.int32, pin_memory=self._cuda)
            self._plans[rows] = held
        values: np.ndarray = held.numpy()
        pack_plan(spans, bucket=rows, out=values)
        for stage in self._parts.stages:
            tables, _ = stage.bucket(rows)
            tables.plan.copy_(held, non_blocking=True)

    def verify(self, rows: int) -> torch.Tensor:
        """float32 [rows, vocabulary] of the window that was sent; valid until the next launch."""
        self._run(rows, ("verify", rows), lambda: self._verify(rows))
        return self._logits[rows]

    def step(
        self, rows: int, *, spans: int, steps: int, draws: Draws, meanwhile: Callable[[], None] = nothing
    ) -> Found:
        """The whole turn of the window that was sent: one launch, one copy back, one wait.

        Args:
            rows: bucket of the window.
            spans: bucket of its spans.
            steps: drafts to grow; 0 leaves the chain out.
            draws: how its slots draw.
            meanwhile: see `StepModel`.
        """
        key = ("step", rows, spans, steps, draws)
        if key not in self._graphs:
            meanwhile()  # what follows compiles, and takes minutes where nothing is cached
        self._run(rows, key, lambda: self._step(rows, spans, steps, draws))
        result = self._parts.last.bucket(rows).result
        held = self._results.get(rows)
        if held is None:
            held = self._results[rows] = torch.zeros_like(result, device="cpu", pin_memory=self._cuda)
        held.copy_(result, non_blocking=True)
        meanwhile()
        if self._cuda:
            torch.cuda.current_stream(self._device).synchronize()
        self.gaps.seen()
        return self._found(rows, held)

    def _verify(self, rows: int) -> None:
        stages = self._parts.stages
        pending: Pending | None = None
        for number, stage in enumerate(stages):
            stage.fill(rows)
            if number == 0:
                self._parts.embed(rows)
            else:
                pending = self._parts.hand_over(stages[number - 1], stage, rows, pending)
            pending = stage.run(rows, pending)
        self._logits[rows] = self._parts.last.logits(rows, pending)

    def _step(self, rows: int, spans: int, steps: int, draws: Draws) -> None:
        last = self._parts.last
        self._verify(rows)
        last.draw(rows, self._logits[rows], draws)
        chain = last.settle(rows, spans)
        if chain is not None and steps:
            last.propose(chain, steps, draws)
        last.gather(rows)

    def prepare(self, rows: int, *, spans: int, steps: int, draws: Draws) -> None:
        """Compiles and captures a step before it is needed."""
        self.send(rows, [])
        key = ("step", rows, spans, steps, draws)
        if self._cuda and not self._plan.plain and key not in self._graphs:
            self._graphs[key] = self._capture(rows, lambda: self._step(rows, spans, steps, draws))

    def _run(self, rows: int, key: tuple[object, ...], launch: Callable[[], None]) -> None:
        if not self._cuda or self._plan.plain:
            launch()
            return
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._capture(rows, launch)
            self.gaps.interrupted()
        graph.replay()
        self.gaps.submitted()

    def _capture(self, rows: int, launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Runs the launches once over a window without rows, which compiles them and changes nothing; then records."""
        tables = [stage.bucket(rows)[0] for stage in self._parts.stages]
        plans = [one.plan.clone() for one in tables]
        for one in tables:
            one.plan.zero_()
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(self._stream):
            launch()
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            launch()
        torch.cuda.synchronize(self._device)
        for one, plan in zip(tables, plans, strict=True):
            one.plan.copy_(plan)
        return graph

    def _found(self, rows: int, held: torch.Tensor) -> Found:
        slots = self._plan.slots + 1
        most = self._parts.last_stage.slots.drafts.shape[1]
        sizes = [rows, rows, rows, slots, slots * most, slots * most]
        ids, bad, kept, counts, drafts, shares = torch.split(held, sizes)
        return Found(
            ids=ids.tolist(),
            bad=bad.tolist(),
            kept=kept.tolist(),
            draft_counts=counts.tolist(),
            drafts=drafts.view(slots, most).tolist(),
            probabilities=shares.view(torch.float32).view(slots, most).tolist(),
        )
