"""How many drafts for whom: expected tokens of every row against what rows and draft steps cost; torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from appliance.scheduler.costs import CostCurve
from appliance.scheduler.limits import Limits

# One window's weight in the running acceptance, once there were as many: about the last sixty-four count.
_WEIGHT: Final = 1 / 64
# Windows in which every depth stood, that a conversation begins with.
_HOPE: Final = 2
# Windows with a first draft after which a conversation's acceptance counts as measured.
_MEASURED: Final = 16


class Acceptance:
    """Running acceptance of one conversation's drafts by depth, and its totals.

    `offered[d]` and `accepted[d]` count the (d+1)-th draft of a window; `planned` is how many the next ones get.
    """

    __slots__ = ("_share", "accepted", "offered", "planned")

    def __init__(self, draft_max: int) -> None:
        """Starts hopeful: every depth counts as accepted until shown otherwise."""
        self._share = [1.0] * draft_max
        self.offered = [0] * draft_max
        self.accepted = [0] * draft_max
        self.planned = draft_max

    def record(self, offered: int, accepted: int) -> None:
        """Notes a verified window: its first `accepted` of `offered` drafts were right."""
        for depth in range(offered):
            hit = depth < accepted
            self.offered[depth] += 1
            self.accepted[depth] += hit
            weight = max(_WEIGHT, 1 / (self.offered[depth] + _HOPE))
            self._share[depth] += weight * (hit - self._share[depth])

    def shares(self) -> list[float]:
        """Chance of each depth to stand: that of the depth before, or less."""
        found, least = [], 1.0
        for share in self._share:
            least = min(least, share)
            found.append(least)
        return found

    @property
    def measured(self) -> bool:
        """Whether enough windows had a draft to say that none is worth it."""
        return bool(self.offered) and self.offered[0] >= _MEASURED


def drafts_on(limits: Limits, *, decoding: int) -> bool:
    """Whether windows carry drafts while `decoding` conversations decode."""
    return limits.draft_max > 0 and (limits.batch_mtp or decoding <= 1)


def plan_depth(acceptance: Acceptance, *, room: int, limits: Limits, decoding: int) -> int:
    """Drafts to propose for one conversation.

    Args:
        acceptance: its history, and what was planned for it.
        room: tokens it may still generate; a window of d drafts can yield d + 1.
        limits: the scheduler's bounds.
        decoding: conversations that decode in the next window.

    Returns:
        0 to `limits.draft_max`.
    """
    if room <= 1 or not drafts_on(limits, decoding=decoding):
        return 0
    return min(acceptance.planned, room - 1, limits.draft_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Drafts of a window.

    Attributes:
        depths: of each conversation.
        steps: of the chain that grows them.
        tokens: expected of one window.
        seconds: that it takes, in the curve's units.
    """

    depths: tuple[int, ...]
    steps: int
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def choose(
    shares: Sequence[Sequence[float]], curve: CostCurve, *, most: int, rows: int, least: Sequence[int]
) -> Choice:
    """The drafts that bring most tokens a second, of all chains and of all windows up to so many rows.

    Rows are given in the order of what they bring, so a draft comes after the one before it.

    Args:
        shares: of each conversation, its chance of each depth, none above the one before.
        curve: what windows cost.
        most: drafts of one conversation.
        rows: of the window, one for each conversation at least.
        least: drafts of each conversation that it gets whatever they bring.
    """
    best: Choice | None = None
    for steps in range(min(most, max(least, default=0)), most + 1):
        found = _of_chain(shares, curve, steps=steps, rows=rows, least=least)
        if best is None or found.rate > best.rate:
            best = found
    assert best is not None
    return best


def _of_chain(
    shares: Sequence[Sequence[float]], curve: CostCurve, *, steps: int, rows: int, least: Sequence[int]
) -> Choice:
    """See `choose`: the best with a chain of so many steps."""
    count = len(shares)
    wanted = [
        (depth < least[number], share[depth], -depth, number)
        for number, share in enumerate(shares)
        for depth in range(steps)
    ]
    wanted.sort(reverse=True)
    last = min(rows - count, len(wanted))
    first = min(last, sum([forced for forced, *_ in wanted]))
    costs = curve.seconds(range(count, count + last + 1), conversations=count, steps=steps)
    tokens = float(count)
    taken, best_tokens = first, 0.0
    for number in range(last + 1):
        if number:
            tokens += wanted[number - 1][1]
        if number == first or (number > first and tokens * costs[taken] > best_tokens * costs[number]):
            taken, best_tokens = number, tokens
    depths = [0] * count
    for *_, number in wanted[:taken]:
        depths[number] += 1
    return Choice(depths=tuple(depths), steps=max(depths), tokens=best_tokens, seconds=costs[taken])


def worth(choice: Choice, shares: Sequence[Sequence[float]], curve: CostCurve) -> Choice:
    """The same drafts at the shares and costs of now."""
    count = len(shares)
    rows = count + sum(choice.depths)
    (seconds,) = curve.seconds(range(rows, rows + 1), conversations=count, steps=choice.steps)
    tokens = count + sum(sum(share[:depth]) for share, depth in zip(shares, choice.depths, strict=True))
    return Choice(depths=choice.depths, steps=choice.steps, tokens=tokens, seconds=seconds)


def totals(all_counts: Sequence[Sequence[int]], *, depths: int) -> tuple[int, ...]:
    """Sums counts by depth over conversations."""
    return tuple(sum(counts[depth] for counts in all_counts) for depth in range(depths))
