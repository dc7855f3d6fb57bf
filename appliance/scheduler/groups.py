"""Which conversations share a window while several windows are on their way through the stages."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.scheduler.session import Session


class Groups:
    """As many groups as keep the stages busy, of sizes that differ by one at most; one conversation is one group.

    A conversation's state lies in its slot, whatever the group, so changing groups moves no byte. It happens only while
    the conversation has no window on its way.
    """

    def __init__(self, count: int) -> None:
        """All empty."""
        self._sizes = [0] * count

    @property
    def sizes(self) -> tuple[int, ...]:
        """Conversations of each group."""
        return tuple(self._sizes)

    def join(self, session: Session) -> None:
        """Puts a new conversation where the fewest are."""
        session.group = self._smallest()
        self._sizes[session.group] += 1

    def leave(self, session: Session) -> None:
        """Forgets one that has ended."""
        self._sizes[session.group] -= 1

    def level(self, group: int, running: Sequence[Session]) -> None:
        """Gives conversations of a group to smaller ones, the youngest first; none of the group is on its way.

        Args:
            group: which.
            running: of all groups, oldest first.
        """
        own = [session for session in running if session.group == group]
        while self._sizes[group] - self._sizes[self._smallest()] > 1:
            youngest = own.pop()
            self.leave(youngest)
            self.join(youngest)

    def _smallest(self) -> int:
        return min(range(len(self._sizes)), key=lambda group: self._sizes[group])
