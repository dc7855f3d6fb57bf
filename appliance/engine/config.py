"""The engine's settings: sizes and bounds that the placement decided; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.errors import RigError
from appliance.scheduler.costs import USUAL, Slopes
from appliance.scheduler.limits import Limits

# Logits of one window that scores a prompt: 64 MiB of float32.
_SCORED_LOGITS = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the engine may use and how it shares it.

    Attributes:
        slots: conversations decoded together.
        page_tokens: positions in one KV page.
        pages: KV pages of all slots together.
        max_tokens: context per conversation, prompt and answer together.
        prompt_chunk: rows of prompt reading in one window, all readers together; at least one for each slot.
        draft_max: longest draft; 0 for no drafts.
        draft_min_p: the drafter's probability below which a draft ends.
        batch_mtp: drafts in every window; False: only while one conversation decodes.
        queue_limit: requests that may wait beyond those that have or could have a slot.
        watchdog_s: silence of the engine thread in a window of few rows that counts as a fault (see watchdog.py).
        max_rows: rows of the largest window that the model can compute; None where it sets no bound.
        span_rows: rows of one conversation in a window, likewise.
        chunk_rows: rows of a turn that one longer prompt has for itself; None where all prompts share windows.
        groups: windows of different conversations that may be on their way at once.
        slopes: what rows and draft steps are expected to cost, until it is measured.
        repeat_limit: a run of one same token id this long ends the request as degenerate; 0 never. Does not apply
            to requests without stop tokens (ignore_eos).

    Raises:
        RigError: a value is out of range, or the pages cannot hold one full conversation.
    """

    slots: int
    page_tokens: int
    pages: int
    max_tokens: int
    prompt_chunk: int = 256
    draft_max: int = 4
    draft_min_p: float = 0.0
    batch_mtp: bool = True
    queue_limit: int = 32
    watchdog_s: float = 60.0
    max_rows: int | None = None
    span_rows: int | None = None
    chunk_rows: int | None = None
    groups: int = 1
    repeat_limit: int = 256
    slopes: Slopes = USUAL

    def __post_init__(self) -> None:
        """Refuses values that no engine could run with."""
        for name, least in (
            ("slots", 1),
            ("page_tokens", 1),
            ("pages", 1),
            ("max_tokens", 2),
            ("prompt_chunk", self.slots),
            ("draft_max", 0),
            ("queue_limit", 0),
            ("groups", 1),
            ("repeat_limit", 0),
        ):
            if getattr(self, name) < least:
                raise RigError(f"engine setting {name} is {getattr(self, name)}; it must be at least {least}")
        if self.max_rows is not None and self.max_rows < self.slots:
            raise RigError(
                f"{self.slots} slots need windows of as many rows, and this model's hold {self.max_rows}; "
                f"set parallel to at most {self.max_rows}"
            )
        if not self.watchdog_s > 0:
            raise RigError(f"engine setting watchdog_s is {self.watchdog_s}; it must be above 0")
        if self.pages * self.page_tokens < self.max_tokens:
            raise RigError(
                f"{self.pages} KV pages of {self.page_tokens} tokens hold {self.pages * self.page_tokens} tokens, "
                f"fewer than one conversation of max_tokens = {self.max_tokens}; allow more pages or lower max_tokens"
            )

    @property
    def decode_rows(self) -> int:
        """Most rows of a window that reads no prompt: every slot with all its drafts."""
        return self.slots * (1 + self.draft_max)

    @property
    def window_rows(self) -> int:
        """Most rows of any window; the model's buffers must hold them."""
        rows = self.decode_rows + self.prompt_chunk
        return rows if self.max_rows is None else min(rows, self.max_rows)

    def limits(self, *, vocabulary: int, can_draft: bool, staged: bool) -> Limits:
        """The scheduler's part of these settings, for a model with `vocabulary` logits a row, and stages or not."""
        return Limits(
            slots=self.slots,
            prompt_chunk=self.prompt_chunk,
            scored_chunk=max(1, min(self.prompt_chunk, _SCORED_LOGITS // vocabulary)),
            draft_max=self.draft_max if can_draft else 0,
            draft_min_p=self.draft_min_p,
            batch_mtp=self.batch_mtp,
            repeat_limit=self.repeat_limit,
            window_rows=self.max_rows,
            span_rows=self.span_rows,
            chunk_rows=self.chunk_rows,
            groups=self.groups if staged else 1,
            # On the CPU too: others use it, and conversations of unequal rows share its threads badly.
            fixed_sizes=True,
            slopes=self.slopes,
        )
