"""The engine's settings: sizes and bounds that the placement decided; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.errors import RigError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the engine may use and how it shares it.

    Attributes:
        slots: conversations decoded together.
        page_tokens: positions in one KV page.
        pages: KV pages of all slots together.
        max_tokens: context per conversation, prompt and answer together.
        prompt_chunk: rows of prompt reading in one window, all readers together.
        draft_max: longest draft; 0 for no drafts.
        draft_min_p: the drafter's probability below which a draft ends.
        batch_mtp: drafts in every window; False: only while one conversation decodes.
        queue_limit: requests that may wait beyond those that have or could have a slot.
        watchdog_s: silence of the engine thread, in a window of few rows, that counts as a fault (see engine/watchdog.py).
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
    repeat_limit: int = 256

    def __post_init__(self) -> None:
        """Refuses values that no engine could run with."""
        smallest = {"slots": 1, "page_tokens": 1, "pages": 1, "max_tokens": 2, "prompt_chunk": 1, "draft_max": 0}
        for name, least in (smallest | {"queue_limit": 0, "repeat_limit": 0}).items():
            if getattr(self, name) < least:
                raise RigError(f"engine setting {name} is {getattr(self, name)}; it must be at least {least}")
        if not self.watchdog_s > 0:
            raise RigError(f"engine setting watchdog_s is {self.watchdog_s}; it must be above 0")
        if self.pages * self.page_tokens < self.max_tokens:
            raise RigError(
                f"{self.pages} KV pages of {self.page_tokens} tokens hold {self.pages * self.page_tokens} tokens, fewer than "
                f"one conversation of max_tokens = {self.max_tokens}; allow more pages or lower max_tokens"
            )

    @property
    def decode_rows(self) -> int:
        """Most rows of a window that reads no prompt: every slot with all its drafts."""
        return self.slots * (1 + self.draft_max)

    @property
    def window_rows(self) -> int:
        """Most rows of any window; the model's buffers must hold them."""
        return self.decode_rows + self.prompt_chunk
