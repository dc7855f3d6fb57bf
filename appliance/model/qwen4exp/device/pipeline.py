"""Sends windows through the stages: submitted by the host in one go, chained by events, waited for once each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence

import torch

from appliance.model.host_gaps import HostGaps
from appliance.model.interface import Glance, no_glance, nothing
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.chunk_shapes import ChunkShape
from appliance.model.qwen4exp.device.clocks import Mark, StageClock, WorkingTime
from appliance.model.qwen4exp.device.graphs import Launch, StageGraphs
from appliance.model.qwen4exp.device.handoff import Border
from appliance.model.qwen4exp.device.loading import LoadedStages
from appliance.model.qwen4exp.device.prompt import Prompts
from appliance.model.qwen4exp.device.prompt_turn import ChunkTail
from appliance.model.qwen4exp.device.ranges import Ranges
from appliance.model.qwen4exp.device.results import Found, LaneMemory
from appliance.model.qwen4exp.device.shapes import StepShape
from appliance.model.qwen4exp.device.trunk import Pending
from appliance.model.qwen4exp.handoff_footprint import lanes_of
from appliance.model.stage_status import StageStatus
from kernels.rows import SpanPlan


class Launcher:
    """Owned by the engine's thread. Each lane has at most one window on its way; the last one is the host's own."""

    def __init__(self, parts: LoadedStages, plan: LoadPlan) -> None:
        self._parts, self._stages, self._last = parts, parts.stages, parts.last
        self._graphs = [StageGraphs(stage, plain=plan.plain) for stage in self._stages]
        self._hosts_own = lanes_of(len(self._stages), plan.groups)
        places = self._hosts_own + 1
        self._borders = [Border(*pair, lanes=places) for pair in itertools.pairwise(self._stages)]
        routes = [*(border.route for border in self._borders), ""]
        self._clocks = [
            StageClock(stage, lanes=places, route=route) for stage, route in zip(self._stages, routes, strict=True)
        ]
        self._memory = [LaneMemory(parts.last_stage, plan) for _ in range(places)]
        self._working = WorkingTime()
        self._logits: dict[int, torch.Tensor] = {}
        self.prompts = Prompts(parts, plan, self._borders) if plan.chunk_rows else None
        self._range = Ranges(on=plan.nvtx)
        self.gaps = HostGaps()

    @property
    def captured(self) -> int:
        """Graphs so far."""
        return sum(graphs.captured for graphs in self._graphs) + (self.prompts.captured if self.prompts else 0)

    def status(self) -> tuple[StageStatus, ...]:
        """What each stage did in the windows that are back."""
        return tuple(clock.status(self._working.total_s) for clock in self._clocks)

    def submit(
        self,
        shape: StepShape,
        spans: Sequence[SpanPlan],
        *,
        lane: int = 0,
        tail: ChunkTail | None = None,
        meanwhile: Callable[[], None] = nothing,
    ) -> None:
        """Sends a turn on its way: one launch a stage, one copy a border, one copy back; waits for nothing.

        Args:
            shape: of the turn.
            spans: of the window.
            lane: has no window on its way.
            tail: the prompt chunk whose last row the window is.
            meanwhile: called before anything that takes long.
        """
        launches = self._launches(shape.rows, lambda: self._step(shape))
        keys = self._keys(shape.rows, shape, chunk=shape.chunk)
        self._prepare(shape.rows, keys, launches, meanwhile=meanwhile)
        self._send(shape.rows, spans, keys, launches, lane=lane, tail=tail)
        self._sent(shape.rows, lane=lane)

    def again(self, shape: StepShape, *, lane: int) -> None:
        """Sends the lane's last window once more, where the model has one stage and nothing of the plan has changed."""
        rows, memory = shape.rows, self._memory[lane]
        with self._range("window"), self._stages[0].on():
            self._stages[0].bucket(rows)[0].plan.copy_(memory.held(rows), non_blocking=True)
            self._graphs[0].run(shape, lambda: self._step(shape))
        self._sent(rows, lane=lane)

    def collect(self, rows: int, *, lane: int = 0, first: Glance = no_glance) -> Found:
        """What became of the lane's window of that bucket; the one wait of a turn. `first`: see `AheadModel`."""
        with self._range("wait"):
            self._memory[lane].wait()
        self.gaps.seen()
        self._working.end()
        found = self._memory[lane].read(rows, first=first)
        if self._borders:
            for clock in self._clocks:
                clock.over(lane)
        return found

    def _sent(self, rows: int, *, lane: int) -> None:
        """After the launches of a window: its answer comes back, and what is done between two windows is done."""
        memory = self._memory[lane]
        with self._parts.last_stage.on():
            memory.fetch(rows, self._last.bucket(rows).result)
        self._working.begin()
        self.gaps.submitted(idle=not any(one is not memory and one.computing for one in self._memory))
        for clock in self._clocks:
            clock.tally()
        for stage in self._stages:
            stage.adapt()

    def verify(self, rows: int, spans: Sequence[SpanPlan], *, tail: ChunkTail | None = None) -> torch.Tensor:
        """float32 [rows, vocabulary] of a window, on the last stage's stream; valid until the next launch."""
        chunk = tail is not None
        launches = self._launches(rows, lambda: self._verify(rows, chunk=chunk))
        keys = self._keys(rows, ("verify", rows, chunk), chunk=chunk)
        self._prepare(rows, keys, launches, meanwhile=nothing)
        self._send(rows, spans, keys, launches, lane=self._hosts_own, tail=tail)
        with self._parts.last_stage.on():
            self._memory[self._hosts_own].mark()
        return self._logits[rows]

    def chunk_shapes(self) -> Iterator[ChunkShape]:
        """Of prompt chunks that are recorded, the likeliest first."""
        return iter(()) if self.prompts is None else self.prompts.shapes()

    def missing(self, shape: StepShape | ChunkShape) -> bool:
        """Whether a step has to be captured first, or chunks of that shape are launched one by one until they are."""
        if isinstance(shape, ChunkShape):
            return self.prompts is not None and self.prompts.missing(shape)
        keys = self._keys(shape.rows, shape, chunk=shape.chunk)
        return any(key is not None and graphs.missing(key) for graphs, key in zip(self._graphs, keys, strict=True))

    def prepare(self, shape: StepShape | ChunkShape) -> None:
        """Compiles and captures a step or a chunk before it is needed."""
        if isinstance(shape, ChunkShape):
            assert self.prompts is not None
            self.prompts.record(shape)
            return
        launches = self._launches(shape.rows, lambda: self._step(shape))
        self._prepare(shape.rows, self._keys(shape.rows, shape, chunk=shape.chunk), launches, meanwhile=nothing)

    def warm_prompts(self) -> None:
        """Compiles what prompt chunks launch, and takes the memory that the longest one needs."""
        if self.prompts is not None:
            self.prompts.warm()

    def _keys(self, rows: int, last: Hashable, *, chunk: bool) -> list[Hashable | None]:
        """Of each stage's graph; None where a chunk's layers are launched one by one."""
        return [*[None if chunk else rows] * (len(self._stages) - 1), last]

    def _launches(self, rows: int, end: Launch) -> list[Launch]:
        """Of each stage; `end` is the last one's."""
        return [*((lambda number=number: self._pass(number, rows)) for number in range(len(self._stages) - 1)), end]

    def _prepare(
        self, rows: int, keys: Sequence[Hashable | None], launches: Sequence[Launch], *, meanwhile: Callable[[], None]
    ) -> None:
        for graphs, key, launch in zip(self._graphs, keys, launches, strict=True):
            if key is not None and graphs.missing(key):
                meanwhile()  # what follows compiles, and takes minutes where nothing is cached
                graphs.prepare(key, rows, launch)
                self.gaps.interrupted()

    def _send(
        self,
        rows: int,
        spans: Sequence[SpanPlan],
        keys: Sequence[Hashable | None],
        launches: Sequence[Launch],
        *,
        lane: int,
        tail: ChunkTail | None,
    ) -> None:
        with self._range("window" if tail is None else "chunk"):
            if tail is None:
                self._send_window(rows, spans, keys, launches, lane=lane)
            else:
                self._send_chunk(tail, spans, keys[-1], launches[-1], lane=lane)

    def _send_window(
        self,
        rows: int,
        spans: Sequence[SpanPlan],
        keys: Sequence[Hashable | None],
        launches: Sequence[Launch],
        *,
        lane: int,
    ) -> None:
        held = self._memory[lane].plan(rows, spans)
        for number, stage in enumerate(self._stages):
            clock = self._clocks[number]
            with stage.on(), self._range("stage"):
                stage.bucket(rows)[0].plan.copy_(held, non_blocking=True)
                if stage.ngram is not None:
                    stage.ngram.send(spans, lane=lane)
                if number:
                    self._borders[number - 1].await_landing(lane)
                clock.mark(lane, Mark.LANDED)
                if number:
                    self._borders[number - 1].receive(rows, lane)
                clock.mark(lane, Mark.BEGUN)
                self._graphs[number].run(keys[number], launches[number])
                clock.mark(lane, Mark.ENDED)
                if number < len(self._borders):
                    self._borders[number].send(rows, lane)
                clock.mark(lane, Mark.PASSED)

    def _send_chunk(
        self, tail: ChunkTail, spans: Sequence[SpanPlan], key: Hashable, launch: Launch, *, lane: int
    ) -> None:
        prompts, held, last = self.prompts, self._memory[lane].plan(1, spans), self._parts.last_stage
        assert prompts is not None

        def go_on() -> None:
            last.bucket(1)[0].plan.copy_(held, non_blocking=True)
            self._graphs[-1].run(key, launch)

        prompts.run(tail, self._clocks, lane=lane, go_on=go_on)

    def _layers(self, number: int, rows: int) -> Pending | None:
        stage = self._stages[number]
        stage.fill(rows)
        if number == 0:
            self._parts.embed(rows)
        return stage.run(rows, None)

    def _pass(self, number: int, rows: int) -> None:
        self._stages[number].finish(rows, self._layers(number, rows))

    def _verify(self, rows: int, *, chunk: bool) -> None:
        pending: Pending | None = None
        if chunk:
            self._parts.last_stage.fill(rows)
        else:
            pending = self._layers(len(self._stages) - 1, rows)
        self._logits[rows] = self._last.logits(rows, pending)

    def _step(self, shape: StepShape) -> None:
        last, rows = self._last, shape.rows
        self._verify(rows, chunk=shape.chunk)
        last.draw(rows, self._logits[rows], shape.draws)
        chain = last.settle(rows, shape.spans)
        if chain is not None and shape.steps:
            with self._range("drafts"):
                last.propose(chain, shape.steps, shape.draws)
        last.gather(rows)
