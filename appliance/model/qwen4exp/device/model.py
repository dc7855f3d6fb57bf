"""A qwen4exp model on a card: stages of layers, and one step for a whole turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from appliance.errors import EngineFault
from appliance.model.host_gaps import HostGaps
from appliance.model.interface import Ask, Chooser, Glance, Stepped, Ticket, no_glance, nothing
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.captures import Captures
from appliance.model.qwen4exp.device.host_verdict import HostVerdict
from appliance.model.qwen4exp.device.loading import LoadedStages, load_stages
from appliance.model.qwen4exp.device.ngram import STORAGE
from appliance.model.qwen4exp.device.pipeline import Launcher
from appliance.model.qwen4exp.device.prompt_turn import ChunkTail, chunk_tail
from appliance.model.qwen4exp.device.report import Report
from appliance.model.qwen4exp.device.shapes import StepShape
from appliance.model.qwen4exp.device.state import Slots
from appliance.model.qwen4exp.device.tables import bucket_of
from appliance.model.qwen4exp.device.turns import plan_of, stepped_of
from appliance.model.qwen4exp.device.work import Draws
from appliance.model.qwen4exp.handoff_footprint import lanes_of, read_lanes
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.window_check import check_window
from appliance.model.stage_status import StageStatus
from appliance.model.window import Commit, Draft, Window
from kernels.sampling import Rules
from kernels.sampling.slots import GREEDY, STOPS, WIDE


class DeviceModel:
    """See `StagedModel`. Owned by one thread."""

    def __init__(self, spec: ModelSpec, plan: LoadPlan, parts: LoadedStages) -> None:
        self.spec, self.plan, self.parts = spec, plan, parts
        self.slots = Slots(plan)
        self.launcher = Launcher(parts, plan)
        self.report = Report(plan, parts, self.launcher)
        self._kinds = [GREEDY] * plan.slots
        self._window: Window | None = None
        self._tail: ChunkTail | None = None
        # Of each lane's window on its way, with how often its slots had been opened.
        self._flying: dict[int, tuple[StepShape, ChunkTail | None, list[int]]] = {}
        self._again: dict[int, tuple[Window, Sequence[Ask], StepShape, list[int]] | None] = {}
        self.captures = Captures(plan, self.launcher, drafts=self.can_draft)
        self._lanes = lanes_of(len(parts.stages), plan.groups)

    @property
    def vocabulary(self) -> int:
        """Rows of logits."""
        return self.spec.vocabulary

    @property
    def can_draft(self) -> bool:
        """Whether there is a draft layer, and it was wanted."""
        return self.parts.last.drafter is not None

    @property
    def gaps(self) -> HostGaps:
        """See `StepModel`."""
        return self.launcher.gaps

    @property
    def reads(self) -> int:
        """See `StagedModel`."""
        return read_lanes(len(self.parts.stages))

    @property
    def ahead(self) -> bool:
        """See `AheadModel`. A table of n-grams on storage is read by tokens that the host has to know."""
        return len(self.parts.stages) == 1 and not self.plan.plain and self.plan.ngram_home not in STORAGE

    @property
    def stages(self) -> tuple[StageStatus, ...]:
        """See `StagedModel`."""
        return self.launcher.status() if len(self.parts.stages) > 1 else ()

    @torch.inference_mode()
    def open_slot(self, slot: int) -> None:
        """See `LoadedModel`."""
        self.slots.open(slot)
        self.open_rules(slot, Rules(temperature=0.0), stops=(), first_stop=0)
        self._give_pages(slot, ())

    @torch.inference_mode()
    def open_rules(self, slot: int, rules: Rules, *, stops: Sequence[int], first_stop: int) -> bool:
        """See `StepModel`."""
        if rules.uses_generated or len(stops) > STOPS:
            return False
        last = self.parts.last_stage
        with last.on():
            self._kinds[slot] = self.parts.last.rules.open(slot, rules, stops=stops, first_stop=first_stop)
            last.slots.draft_limit[slot].fill_(self.plan.draft_max)
            last.slots.draft_least[slot].fill_(self.plan.draft_min_p)
        return True

    @torch.inference_mode()
    def set_pages(self, slot: int, pages: Sequence[int]) -> None:
        """See `LoadedModel`."""
        self.slots.set_pages(slot, pages)
        self._give_pages(slot, tuple(pages))

    def length(self, slot: int) -> int:
        """Committed tokens of the slot."""
        return self.slots.lengths[slot]

    @torch.inference_mode()
    def forward(self, window: Window) -> torch.Tensor:
        """See `LoadedModel`. Drafts are the only rows that a later commit may drop.

        Raises:
            EngineFault: a span that does not continue its slot, has no pages or has a token outside the vocabulary.
        """
        check_window(window, self.slots, vocabulary=self.vocabulary)
        self._tail = chunk_tail(window, chunk_rows=self.plan.chunk_rows)
        if self._tail is not None:
            window = self._tail.window
        rows = bucket_of(window.rows)
        logits = self.launcher.verify(rows, [plan_of(span, None) for span in window.spans], tail=self._tail)
        self._window = window
        wanted: list[int] = []
        first = 0
        for span in window.spans:
            wanted += range(first + span.logits_from, first + len(span.tokens))
            first += len(span.tokens)
        last = self.parts.last_stage
        with last.on():
            chosen = logits[torch.tensor(wanted, dtype=torch.int64, device=logits.device)]
        last.lead(chosen)
        return chosen

    @torch.inference_mode()
    def advance(self, commits: Sequence[Commit], choose: Chooser) -> tuple[Draft, ...]:
        """See `LoadedModel`.

        Raises:
            EngineFault: no window before it, a commit that does not belong to it, or one that drops more than drafts.
        """
        window, self._window = self._window, None
        if window is None:
            raise EngineFault("advance was called without a window before it; each forward allows one")
        if self._tail is not None:
            commits = [self._tail.commit(commit) for commit in commits]
            self.slots.lengths[self._tail.slot] += self._tail.before
        by_slot = {commit.slot: commit for commit in commits}
        spans = {span.slot: span for span in window.spans}
        for commit in commits:
            if commit.slot not in spans or not 1 <= commit.kept <= len(spans[commit.slot].tokens):
                raise EngineFault(f"commit {commit} does not belong to the window; spans were {list(spans)}")
        if not commits:
            return ()
        last = self.parts.last_stage
        last.follow()
        with last.on():
            return HostVerdict(self.parts.last, self.slots, window=window, commits=by_slot).run(choose)

    @torch.inference_mode()
    def step(
        self, window: Window, asks: Sequence[Ask], *, meanwhile: Callable[[], None] = nothing
    ) -> tuple[Stepped, ...]:
        """See `StepModel`.

        Raises:
            EngineFault: as `forward`.
        """
        ticket = self.submit(window, asks, meanwhile=meanwhile)
        meanwhile()
        return self.collect(ticket)

    @torch.inference_mode()
    def submit(
        self, window: Window, asks: Sequence[Ask], *, lane: int = 0, meanwhile: Callable[[], None] = nothing
    ) -> Ticket:
        """See `StagedModel`.

        Raises:
            EngineFault: as `forward`, or the lane has a window on its way.
        """
        again = self._again.get(lane)
        if again is not None and again[0] is window and again[1] is asks and lane not in self._flying:
            self.launcher.again(again[2], lane=lane)
            self._flying[lane] = again[2], None, again[3]
            return Ticket(lane, window, tuple(asks))
        check_window(window, self.slots, vocabulary=self.vocabulary, ahead=True)
        if lane in self._flying or not 0 <= lane < self._lanes:
            raise EngineFault(f"lane {lane} of {self._lanes} has a window on its way, or does not exist")
        tail = chunk_tail(window, chunk_rows=self.plan.chunk_rows)
        spans = window.spans if tail is None else tail.window.spans
        kinds = {self._kinds[span.slot] for span in spans}
        shape = StepShape(
            rows=bucket_of(sum([span.rows for span in spans])),
            spans=bucket_of(len(spans)),
            chunk=tail is not None,
            steps=max(ask.draft_max for ask in asks) if self.can_draft else 0,
            draws=Draws(wide=WIDE in kinds, greedy=kinds == {GREEDY}),
        )
        plans = [plan_of(span, ask.next_token) for span, ask in zip(spans, asks, strict=True)]
        self.launcher.submit(shape, plans, lane=lane, tail=tail, meanwhile=meanwhile)
        opened = [self.slots.opened[span.slot] for span in window.spans]
        self._flying[lane] = shape, tail, opened
        # The plan of a window of which the host knows no row does not change from one to the next.
        known = any(span.tokens for span in window.spans) or not self.ahead
        self._again[lane] = (window, asks, shape, opened) if not known else None
        for span, ask in zip(window.spans, asks, strict=True):
            if ask.next_token is not None:  # whatever comes, its rows stay
                self.slots.lengths[span.slot] += len(span.tokens)
        return Ticket(lane, window, tuple(asks))

    def collect(self, ticket: Ticket, *, first: Glance = no_glance) -> tuple[Stepped, ...]:
        """See `AheadModel`."""
        shape, tail, opened = self._flying.pop(ticket.lane)
        found = self.launcher.collect(shape.rows, lane=ticket.lane, first=first)
        stepped = stepped_of(ticket, found, drafting=shape.steps > 0, tail=tail)
        for one, ask, times in zip(stepped, ticket.asks, opened, strict=True):
            # A slot may have been given to the next conversation in `first`.
            if ask.next_token is None and self.slots.opened[one.slot] == times:
                self.slots.lengths[one.slot] += one.kept
        return stepped

    @torch.inference_mode()
    def prepare(self) -> bool:
        """See `PreparingModel`."""
        return self.captures.one()

    def close(self) -> None:
        """Gives pinned memory back; no window may run any more."""
        for stage in self.parts.stages:
            stage.close()

    def _give_pages(self, slot: int, pages: tuple[int, ...]) -> None:
        for stage in self.parts.stages:
            with stage.on():
                stage.set_pages(slot, pages)


@torch.inference_mode()
def load_device_model(spec: ModelSpec, plan: LoadPlan, progress: Callable[[str, int], None]) -> DeviceModel:
    """Loads weights, makes the state, and captures the likeliest windows."""
    model = DeviceModel(spec, plan, load_stages(spec, plan, progress))
    if model.captures.possible:
        progress("compiling kernels", 98)
        model.captures.first()
        progress("compiling prompt kernels", 99)
        model.launcher.warm_prompts()
    progress("loaded", 100)
    return model
