"""Gives every conversation of a window its drafts, and says why; plans anew now and then, by what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from appliance.scheduler.costs import CostCurve, Measured, Shape
from appliance.scheduler.limits import Limits
from appliance.scheduler.planner import Choice, choose, drafts_on, worth
from appliance.scheduler.session import Session, SessionState
from appliance.scheduler.windows import Turn

# Windows of a group between two plans, unless somebody comes or goes.
_PLAN_EVERY: Final = 16
# Another plan for the same conversations must bring this much more.
_WORTH_A_CHANGE: Final = 1.015
_WORTH_A_KNOWN_SIZE: Final = 1.03  # where sizes of windows are graphs
_WORTH_A_NEW_SIZE: Final = 1.05  # of which each has to be captured
# Now and then a few windows offer one draft more than planned, since texts change character; the first of them only
# grows what the next ones verify. So seldom that they cost no more than this share of the time. Where windows of one
# draft fewer never came, those are tried first, since graphs have few sizes and no line says where they change.
_PROBES: Final = 3
_PROBE_SHARE: Final = 0.007
_PROBE_EVERY: Final = 32

NO_DRAFTS: Final = "no drafts: the model or the rig has none"
ALONE_ONLY: Final = "no drafts in company: batch_mtp is off"
ALL: Final = "every draft brings more than its row costs"
FULL: Final = "the window has no more rows"
FEWER: Final = "deeper drafts bring less than their rows and steps cost"
AS_BEFORE: Final = "as before somebody came or left, until the next look"
NONE: Final = "too few first drafts stand to pay for a row"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPlan:
    """What the next windows of a group are.

    Attributes:
        depths: drafts of each of its conversations.
        rows, steps: of a window, and of the chain that grows the drafts.
        tokens, window_s: expected of a window; None before any was measured.
        why: a sentence.
    """

    group: int
    depths: tuple[int, ...]
    rows: int
    steps: int
    tokens: float
    window_s: float | None
    why: str


@dataclass(slots=True)
class _Standing:
    """A group's plan.

    Attributes:
        members: whose it is.
        on: whether windows carry drafts.
        most: drafts of one conversation that its windows have room for.
        choice: None where drafts are off.
        age: windows since it was looked at.
        unprobed: windows since something else was tried.
        probe_after: so many windows.
        trying: then for a few windows: one draft more for everybody who has room for it (1), or one fewer (-1).
        why: a sentence.
    """

    members: tuple[Session, ...] = ()
    on: bool = False
    most: int = 0
    choice: Choice | None = None
    age: int = 0
    unprobed: int = 0
    probe_after: int = 0
    trying: int = 0
    why: str = NO_DRAFTS

    @property
    def shift(self) -> int:
        """What the next window's drafts differ by from those planned."""
        return self.trying if self.unprobed >= self.probe_after else 0


class DraftPlanner:
    """Owned by the engine's thread."""

    def __init__(self, limits: Limits) -> None:
        """Nothing measured, nobody there."""
        self._limits = limits
        # By how many groups decode: with several the busiest stage sets the pace, with one their sum.
        self._curves: dict[int, CostCurve] = {}
        self._standing = [_Standing() for _ in range(limits.groups)]
        self._busy = 1

    def plan(self, running: Sequence[Session], decoding: Sequence[Session], *, group: int, sharing: int) -> None:
        """Before a window of a group is composed: decides what each of its conversations is given.

        Args:
            running: everybody with a slot.
            decoding: of the group.
            group: which.
            sharing: conversations of the window, those that read included.
        """
        standing = self._standing[group]
        everybody = [session for session in running if session.state is SessionState.DECODING]
        on = bool(decoding) and drafts_on(self._limits, decoding=len(everybody))
        most = self._limits.drafts_of(sharing) if on else 0
        members = tuple(decoding)
        busy = max(1, len({session.group for session in everybody}))
        standing.age += 1
        standing.unprobed += 1
        same = standing.members == members and (standing.on, standing.most) == (on, most) and busy == self._busy
        if not same or standing.age >= _PLAN_EVERY:
            room, self._busy = standing.most, busy
            standing.members, standing.on, standing.most, standing.age = members, on, most, 0
            if same or not self._limits.fixed_sizes:
                self._decide(standing, before=standing.choice if same else None)
            else:
                self._adopt(standing, room=room)
        if standing.unprobed >= standing.probe_after + _PROBES:
            standing.unprobed = 0
        depths = standing.choice.depths if standing.choice is not None else (0,) * len(members)
        shift = self._shift(standing)
        for session, depth in zip(members, depths, strict=True):
            session.acceptance.planned = max(0, min(most, depth + shift))

    def stands(self, group: int) -> bool:
        """Whether the group has a plan, which may be of others."""
        return self._standing[group].choice is not None

    def steps(self, turn: Turn) -> int:
        """Of the chain after a turn: as deep as its next windows verify."""
        if turn.decoding == 0:
            return self._limits.draft_max if drafts_on(self._limits, decoding=1) else 0
        standing = self._standing[turn.sessions[0].group]
        if standing.choice is None:
            return 0
        return min(standing.most, standing.choice.steps + max(0, self._shift(standing)))

    def note(self, turn: Turn, *, steps: int, seconds: float) -> None:
        """A turn took so long, from the end of the window before it to its own; one that reads too is not counted."""
        if turn.decoding == len(turn.sessions):
            shape = Shape(turn.window.rows, turn.decoding, steps)
            self._curve().note(shape, seconds)

    def plans(self) -> tuple[DraftPlan, ...]:
        """Of every group in which somebody decodes."""
        known = bool(self._curve().measured())
        return tuple(
            DraftPlan(
                group=number,
                depths=choice.depths,
                rows=len(choice.depths) + sum(choice.depths),
                steps=choice.steps,
                tokens=choice.tokens,
                window_s=choice.seconds if known else None,
                why=standing.why,
            )
            for number, standing in enumerate(self._standing)
            if standing.members and (choice := standing.choice or _none(standing.members)) is not None
        )

    def measured(self) -> dict[int, tuple[Measured, ...]]:
        """Times of windows, by how many groups were on their way."""
        return {busy: curve.measured() for busy, curve in sorted(self._curves.items())}

    def _curve(self) -> CostCurve:
        found = self._curves.get(self._busy)
        if found is None:
            found = self._curves[self._busy] = CostCurve(self._limits.slopes)
        return found

    def _shift(self, standing: _Standing) -> int:
        """Where sizes are fixed everything is offered, since those windows have their graphs."""
        return standing.shift * (self._limits.draft_max if self._limits.fixed_sizes else 1)

    def _adopt(self, standing: _Standing, *, room: int) -> None:
        """Each conversation goes on with what it had, a new one with all; the next look decides, by what that took.

        Who had as many as there was `room` for in the window may now have more.
        """
        standing.choice, standing.trying, standing.why = None, 0, ALONE_ONLY if self._limits.draft_max else NO_DRAFTS
        if standing.on:
            had = [session.acceptance.planned for session in standing.members]
            depths = tuple(standing.most if depth >= room else min(standing.most, depth) for depth in had)
            shares = [session.acceptance.shares() for session in standing.members]
            asked = Choice(depths=depths, steps=max(depths), tokens=1.0, seconds=1.0)
            standing.choice = worth(asked, shares, self._curve())
            standing.why = ALL if min(depths) == self._limits.draft_max else AS_BEFORE

    def _decide(self, standing: _Standing, *, before: Choice | None) -> None:
        """Looks for the best drafts; `before`: those of the same conversations until now."""
        if not standing.on:
            standing.choice, standing.trying = None, 0
            standing.why = ALONE_ONLY if self._limits.draft_max else NO_DRAFTS
            return
        curve, most = self._curve(), standing.most
        shares = [session.acceptance.shares() for session in standing.members]
        # One draft at least, until a conversation has shown that it is not worth a row of a window whose cost is known.
        known = curve.knows_company(len(shares))
        least = [min(most, 0 if known and session.acceptance.measured else 1) for session in standing.members]
        rows = self._limits.window_rows or len(shares) * (1 + most)
        found = choose(shares, curve, most=most, rows=rows, least=least)
        if before is not None and max(before.depths) <= most:
            kept = worth(before, shares, curve)
            found = found if found.rate > self._worth_a_change(found) * kept.rate else kept
        standing.choice, fixed = found, self._limits.fixed_sizes
        shorter = Shape(len(shares) + sum([max(0, depth - 1) for depth in found.depths]), len(shares), found.steps)
        if not fixed and max(found.depths) and not any(least) and not curve.knows(shorter):
            standing.trying, standing.probe_after = -1, _PROBE_EVERY
        else:
            standing.trying = 1
            standing.probe_after = _probe_after(found, shares, curve, most=most, more=most if fixed else 1)
        standing.why = _why(found, most=most, draft_max=self._limits.draft_max, rows=rows)

    def _worth_a_change(self, found: Choice) -> float:
        """How much more another plan must bring; more than times are off by."""
        count, least = len(found.depths), _WORTH_A_CHANGE
        if self._limits.fixed_sizes:
            known = self._curve().knows(Shape(count + sum(found.depths), count, found.steps))
            least = _WORTH_A_KNOWN_SIZE if known else _WORTH_A_NEW_SIZE
        return max(least, 1 + self._curve().spread)


def _probe_after(choice: Choice, shares: Sequence[Sequence[float]], curve: CostCurve, *, most: int, more: int) -> int:
    """Windows between two probes of so many drafts more, as if what they offer never stood."""
    depths = tuple(min(most, depth + more) for depth in choice.depths)
    deeper = worth(replace(choice, depths=depths, steps=max(depths)), shares, curve)
    lost = deeper.seconds / choice.seconds - 1
    return max(_PROBE_EVERY, round(_PROBES * lost / _PROBE_SHARE))


def _none(members: Sequence[Session]) -> Choice:
    return Choice(depths=(0,) * len(members), steps=0, tokens=float(len(members)), seconds=0.0)


def _why(choice: Choice, *, most: int, draft_max: int, rows: int) -> str:
    if not any(choice.depths):
        return NONE
    if min(choice.depths) == draft_max:
        return ALL
    if sum(choice.depths) + len(choice.depths) == rows or (min(choice.depths) == most):
        return FULL
    return FEWER
