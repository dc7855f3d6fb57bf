"""What the engine may ask of a loaded model, whatever its architecture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from appliance.model.expert_status import ExpertStatus
from appliance.model.host_gaps import HostGaps
from appliance.model.stage_status import StageStatus
from appliance.model.window import Commit, Draft, Window
from kernels.sampling import Rules


class Chooser(Protocol):
    """Picks one token per row from logits, as the engine's sampler would at that position."""

    def __call__(
        self, logits: torch.Tensor, *, slots: Sequence[int], positions: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Chooses.

        Args:
            logits: float32 [rows, vocabulary] of the drafter.
            slots: the slot of each row.
            positions: the position the chosen token would take.

        Returns:
            Token ids int64 [rows], and the drafter's probability of each, float32 [rows].
        """
        ...


class LoadedModel(Protocol):
    """Weights plus the state of all slots. Owned by one thread."""

    @property
    def vocabulary(self) -> int:
        """Rows of logits."""
        ...

    @property
    def can_draft(self) -> bool:
        """Whether the file has a usable draft layer."""
        ...

    def open_slot(self, slot: int) -> None:
        """Forgets whatever the slot held: length 0, zero recurrent state, no pages."""
        ...

    def set_pages(self, slot: int, pages: Sequence[int]) -> None:
        """Gives the slot its KV pages, in order of position. Pages it had stay first."""
        ...

    def length(self, slot: int) -> int:
        """Committed tokens of the slot."""
        ...

    def forward(self, window: Window) -> torch.Tensor:
        """Runs the window; returns float32 logits [sum of logit_rows, vocabulary] in row order.

        Until `advance`, every span is provisional: the committed state is that before the window.
        """
        ...

    def advance(self, commits: Sequence[Commit], choose: Chooser) -> tuple[Draft, ...]:
        """Keeps the first rows of the last window's spans and proposes drafts; one call after each forward.

        A slot of the window without a commit must be reopened before its next use. After the call a slot's
        state is exactly that of a run that never saw the rows which were not kept.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a step shall do with a span once its rows are computed.

    Attributes:
        next_token: the prompt's next token, after which nothing is drawn; None: draw.
        draft_max: how many drafts to propose; 0 for none.
    """

    next_token: int | None = None
    draft_max: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """What became of a span.

    Attributes:
        slot: the session's slot.
        tokens: drawn after the last row that is no draft, and after each draft; none where the next token was given.
        finite: whether the logits of those rows were numbers.
        kept: rows that stay.
        drafts: proposed tokens to follow the last token that stands; up to `Ask.draft_max`.
        probabilities: of the drafts.
    """

    slot: int
    tokens: tuple[int, ...]
    finite: tuple[bool, ...]
    kept: int
    drafts: tuple[int, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A window on its way: on which lane, and what was asked of it."""

    lane: int
    window: Window
    asks: tuple[Ask, ...]

    @property
    def draws_nothing(self) -> bool:
        """Whether all next tokens were known, so that what comes of the window is too."""
        return all(ask.next_token is not None for ask in self.asks)


def nothing() -> None:
    """What a caller has to do meanwhile who has nothing to do."""


Glance = Callable[[Sequence[int], Sequence[int], Sequence[int]], None]
"""Gets the ids drawn at all rows, for each whether its logits were no numbers, and the rows of each span."""


def no_glance(ids: Sequence[int], bad: Sequence[int], rows: Sequence[int]) -> None:
    """What a caller does first with an answer who does nothing first."""


@runtime_checkable
class StepModel(LoadedModel, Protocol):
    """A model that draws, accepts and drafts where it computes: one launch and one wait for a whole turn."""

    @property
    def gaps(self) -> HostGaps:
        """How long the device waited for the host between its windows."""
        ...

    def open_rules(self, slot: int, rules: Rules, *, stops: Sequence[int], first_stop: int) -> bool:
        """Says how the tokens of an opened slot are drawn.

        Args:
            slot: which.
            rules: of its request.
            stops: tokens that cannot be drawn at positions before `first_stop`.
            first_stop: 0 for no such position.

        Returns:
            Whether a step draws by them; if not, turns with this slot go through `forward` and `advance`.
        """
        ...

    def step(
        self, window: Window, asks: Sequence[Ask], *, meanwhile: Callable[[], None] = nothing
    ) -> tuple[Stepped, ...]:
        """Runs a window, keeps the drafts that equal the tokens drawn before them, and proposes new ones.

        Args:
            window: the spans.
            asks: one for each span, in order.
            meanwhile: called while the device computes, and before anything that takes long on the host; safe to
                call more than once.
        """
        ...


@runtime_checkable
class StagedModel(StepModel, Protocol):
    """A model whose layers are stages that compute side by side, each for another group of slots."""

    @property
    def stages(self) -> tuple[StageStatus, ...]:
        """What each stage did so far; empty where there is one."""
        ...

    @property
    def reads(self) -> int:
        """Windows of prompts that may be on their way beside those of the plan's groups; 0 with one stage."""
        ...

    def submit(
        self, window: Window, asks: Sequence[Ask], *, lane: int = 0, meanwhile: Callable[[], None] = nothing
    ) -> Ticket:
        """The first half of a step; nothing is waited for, and windows on other lanes may be on their way.

        Args:
            window: of slots that have no other window on its way, but such as draws nothing: whose asks all name the
                next token. Its rows count as committed at once.
            asks: one for each span, in order.
            lane: one for each of the plan's groups, then `reads` more; each has one window on its way at most.
            meanwhile: called before anything that takes long on the host.
        """
        ...

    def collect(self, ticket: Ticket) -> tuple[Stepped, ...]:
        """The second half: waits for the window, and returns what `step` would."""
        ...


@runtime_checkable
class AheadModel(StagedModel, Protocol):
    """A model that may be sent a slot's next window while its last one is on its way: it knows what stands itself."""

    @property
    def ahead(self) -> bool:
        """Whether that is so in this placement; then lanes 0 and 1 are there, used in turn, and windows of spans
        without tokens are understood. What `collect` returns has as many drawn tokens as rows were verified.
        """
        ...

    def collect(self, ticket: Ticket, *, first: Glance = no_glance) -> tuple[Stepped, ...]:
        """See `StagedModel`; `first` is called before anything is unpacked.

        It may submit the next window on the ticket's lane: where that is the very window that the lane had, of spans
        without tokens, and the very asks, little is left to do.
        """
        ...


@runtime_checkable
class PreparingModel(LoadedModel, Protocol):
    """A model to which windows of a new size are dear when they first come."""

    def prepare(self) -> bool:
        """Gets one more of the windows ready that may come, while none is on its way; False when none is left."""
        ...


class CardReport(Protocol):
    """What a model on cards can say of itself."""

    def experts(self) -> ExpertStatus:
        """How the routed experts lie, and how often they were where they were wanted."""
        ...

    def remember(self) -> None:
        """Saves what was learned of the routing, if there is a file for it; any thread, once no window runs."""
        ...

    def held(self) -> list[dict[str, int]]:
        """Bytes on the card of each stage by part, in the words of the placement's items."""
        ...


@runtime_checkable
class CardModel(LoadedModel, Protocol):
    """A model on cards."""

    report: CardReport
