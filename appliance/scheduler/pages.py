"""KV page accounting: a conversation reserves all it can ever need before it starts, so none is cut or preempted."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.errors import EngineFault


class PagePool:
    """Hands out page numbers 0 to total - 1."""

    def __init__(self, total: int, *, page_tokens: int) -> None:
        """All pages free, `page_tokens` positions each."""
        self.total = total
        self.page_tokens = page_tokens
        self._free = list(range(total - 1, -1, -1))

    @property
    def used(self) -> int:
        """Pages some conversation holds."""
        return self.total - len(self._free)

    def needed(self, tokens: int) -> int:
        """Pages that hold `tokens` positions."""
        return -(-tokens // self.page_tokens)

    def fits(self, tokens: int) -> bool:
        """Whether `take(tokens)` would succeed now."""
        return self.needed(tokens) <= len(self._free)

    def take(self, tokens: int) -> tuple[int, ...]:
        """Reserves pages for `tokens` positions; call only after `fits`."""
        return tuple(self._free.pop() for _ in range(self.needed(tokens)))

    def give_back(self, pages: Sequence[int]) -> None:
        """Returns a conversation's pages."""
        self._free.extend(pages)

    def check_idle(self) -> None:
        """Checks that with no conversation running every page is free exactly once.

        Raises:
            EngineFault: a page was lost or returned twice.
        """
        if len(self._free) != self.total or len(set(self._free)) != self.total:
            distinct = len(set(self._free))
            raise EngineFault(
                f"idle engine holds {len(self._free)} free KV pages ({distinct} distinct) of {self.total}; restart it"
            )
