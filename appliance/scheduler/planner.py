"""How many drafts for whom: the same computation for one conversation and for eight."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.scheduler.limits import Limits

# One window's weight in the running acceptance: about the last sixteen windows count.
_WEIGHT = 1 / 16
# A depth accepted more rarely than this costs more rows than it brings.
_FLOOR = 0.1
# A depth given up is offered again after this many windows: text changes character.
_PROBE_EVERY = 32


class Acceptance:
    """Running acceptance of one conversation's drafts by depth, and its totals.

    `offered[d]` and `accepted[d]` count the (d+1)-th draft of a window.
    """

    __slots__ = ("_share", "_since_probe", "accepted", "offered")

    def __init__(self, draft_max: int) -> None:
        """Starts hopeful: every depth counts as accepted until shown otherwise."""
        self._share = [1.0] * draft_max
        self._since_probe = 0
        self.offered = [0] * draft_max
        self.accepted = [0] * draft_max

    def record(self, offered: int, accepted: int) -> None:
        """Notes a verified window: its first `accepted` of `offered` drafts were right."""
        for depth in range(offered):
            hit = depth < accepted
            self.offered[depth] += 1
            self.accepted[depth] += hit
            self._share[depth] += _WEIGHT * (hit - self._share[depth])

    def depth(self) -> int:
        """Drafts worth asking for in the next window."""
        if min(self._share, default=1.0) >= _FLOOR:
            return len(self._share)
        worth = next(depth for depth, share in enumerate(self._share) if share < _FLOOR)
        self._since_probe += 1
        if self._since_probe < _PROBE_EVERY:
            return worth
        self._since_probe = 0
        return len(self._share)


def drafts_on(limits: Limits, *, decoding: int) -> bool:
    """Whether windows carry drafts while `decoding` conversations decode."""
    return limits.draft_max > 0 and (limits.batch_mtp or decoding <= 1)


def plan_depth(acceptance: Acceptance, *, room: int, limits: Limits, decoding: int) -> int:
    """Drafts to propose for one conversation.

    Args:
        acceptance: its history.
        room: tokens it may still generate; a window of d drafts can yield d + 1.
        limits: the scheduler's bounds.
        decoding: conversations that decode in the next window.

    Returns:
        0 to `limits.draft_max`.
    """
    if room <= 1 or not drafts_on(limits, decoding=decoding):
        return 0
    return min(acceptance.depth(), room - 1, limits.draft_max)


def totals(all_counts: Sequence[Sequence[int]], *, depths: int) -> tuple[int, ...]:
    """Sums counts by depth over conversations."""
    return tuple(sum(counts[depth] for counts in all_counts) for depth in range(depths))
