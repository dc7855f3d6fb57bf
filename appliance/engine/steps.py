"""How a turn is computed and settled: in separate calls, or as one step of a model that samples and accepts itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from appliance.engine.outbox import Outbox
from appliance.engine.sampler import Sampler
from appliance.errors import EngineFault
from appliance.model.greedy import GreedyModel
from appliance.model.interface import Ask, LoadedModel, PreparingModel, StepModel, Stepped
from appliance.model.window import Commit, Draft
from appliance.scheduler.commit import Drawn
from appliance.scheduler.scheduler import Scheduler
from appliance.scheduler.session import Session
from appliance.scheduler.windows import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Where the seconds of a step went; what a model does in one piece counts as forward."""

    forward_s: float
    sample_s: float
    draft_s: float
    host_s: float


class Stepper(Protocol):
    """Owned by the engine's thread."""

    def open(self, session: Session) -> None:
        """Prepares the slot that the session was given."""
        ...

    def step(self, turn: Turn, outbox: Outbox) -> Spent:
        """Computes a turn, settles it, leaves what the clients shall hear in `outbox`, and offers the next drafts.

        The outbox is sent in here at the first moment at which the device does not wait for it.
        """
        ...

    def rest(self) -> bool:
        """Nobody wants a window now; the time until the next is nobody's. Whether `prepare` has a use for it."""
        ...

    def prepare(self) -> None:
        """Gets one more window ready that may come."""
        ...


class PlainStepper:
    """Forward, draw, settle, advance: the host decides between the calls."""

    def __init__(self, model: LoadedModel, scheduler: Scheduler) -> None:
        """For a model whose state this thread owns."""
        self._model = model
        self._scheduler = scheduler
        likeliest = model.likeliest if isinstance(model, GreedyModel) else None
        self.sampler = Sampler(vocabulary=model.vocabulary, likeliest=likeliest)

    def open(self, session: Session) -> None:
        """See `Stepper`."""
        self._model.open_slot(session.slot)
        self._model.set_pages(session.slot, session.pages)
        self.sampler.open(session)

    def step(self, turn: Turn, outbox: Outbox) -> Spent:
        """See `Stepper`."""
        clock = time.perf_counter
        began_s = clock()
        logits = self._model.forward(turn.window)
        ran_s = clock()
        drawn = self.sampler.draw(turn, logits)
        sampled_s = clock()
        settled = self._scheduler.settle(turn, drawn)
        outbox.add(settled.events)
        outbox.send()
        published_s = clock()
        # The clients hear of this window while the next one's drafts are computed.
        self._scheduler.offer(turn, self._model.advance(settled.commits, self.sampler.choose))
        return Spent(
            forward_s=ran_s - began_s,
            sample_s=sampled_s - ran_s,
            draft_s=clock() - published_s,
            host_s=published_s - sampled_s,
        )

    def rest(self) -> bool:
        """See `Stepper`; the time between calls is not measured here."""
        return False

    def prepare(self) -> None:
        """See `Stepper`."""


class DeviceStepper:
    """One launch and one wait a turn; turns that want more than a draw go the plain way, on the same state."""

    def __init__(self, model: StepModel, scheduler: Scheduler) -> None:
        """For a model whose state this thread owns."""
        self._model = model
        self._scheduler = scheduler
        self._plain = PlainStepper(model, scheduler)
        self._drawn: dict[int, bool] = {}
        self._preparing = model if isinstance(model, PreparingModel) else None

    def open(self, session: Session) -> None:
        """See `Stepper`."""
        self._plain.open(session)
        self._drawn[session.slot] = self._plain.sampler.give_rules(session, self._model)

    def step(self, turn: Turn, outbox: Outbox) -> Spent:
        """See `Stepper`.

        Raises:
            EngineFault: the device kept other rows of a conversation than the host.
        """
        asks = self._asks(turn)
        if asks is None:
            outbox.send()
            return self._plain.step(turn, outbox)
        clock = time.perf_counter
        began_s = clock()
        # The clients hear of the window before while the device computes this one.
        stepped = self._model.step(turn.window, asks, meanwhile=outbox.send)
        ran_s = clock()
        self._settle(turn, stepped, outbox)
        return Spent(forward_s=ran_s - began_s, sample_s=0.0, draft_s=0.0, host_s=clock() - ran_s)

    def _settle(self, turn: Turn, stepped: Sequence[Stepped], outbox: Outbox) -> None:
        settled = self._scheduler.settle(turn, [Drawn(found.tokens, found.finite) for found in stepped])
        outbox.add(settled.events)
        self._scheduler.offer(turn, proposals(settled.commits, stepped))

    def rest(self) -> bool:
        """See `Stepper`."""
        self._model.gaps.interrupted()
        return self._preparing is not None

    def prepare(self) -> None:
        """See `Stepper`."""
        if self._preparing is not None and not self._preparing.prepare():
            self._preparing = None

    def _asks(self, turn: Turn) -> list[Ask] | None:
        """None when some span wants more than a draw."""
        if not all(self._drawn[session.slot] for session in turn.sessions):
            return None
        draws: list[int | None] = [None] * turn.decoding  # the prompt's next token where a span draws nothing
        for span, session in zip(turn.window.spans[turn.decoding :], turn.sessions[turn.decoding :], strict=True):
            stop = span.start + len(span.tokens)
            draws.append(session.request.prompt_ids[stop] if stop < session.prompt_tokens else None)
        drawn = Ask(draft_max=self._scheduler.drafting.steps(turn))
        return [drawn if token is None else Ask(next_token=token) for token in draws]


def proposals(commits: Sequence[Commit], stepped: Sequence[Stepped]) -> list[Draft]:
    """The device's drafts, as far as each commit wants them.

    Raises:
        EngineFault: a commit that keeps other rows than the device kept.
    """
    by_slot = {found.slot: found for found in stepped}
    drafts: list[Draft] = []
    for commit in commits:
        found = by_slot[commit.slot]
        if commit.kept != found.kept:
            raise EngineFault(
                f"slot {commit.slot}: the device kept {found.kept} rows and the host {commit.kept}; their states differ"
            )
        count = min(commit.draft_max, len(found.drafts))
        if commit.draft_min_p > 0:
            count = next((n for n in range(count) if found.probabilities[n] < commit.draft_min_p), count)
        drafts.append(Draft(commit.slot, found.drafts[:count], found.probabilities[:count]))
    return drafts


def stepper_of(model: LoadedModel, scheduler: Scheduler) -> Stepper:
    """The way to step a model."""
    return DeviceStepper(model, scheduler) if isinstance(model, StepModel) else PlainStepper(model, scheduler)
