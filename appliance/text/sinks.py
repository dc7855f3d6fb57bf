"""The last step before a delta: stop strings, and white space that waits for the text behind it."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.text.runs import Run, held_suffix


class StopMatcher:
    """Cuts content before the first stop string that completes, however the text is cut into pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = Run()
        self.match_owner: int | None = None

    def feed(self, run: Run) -> Run:
        """What is certain to stay. After a match, match_owner is the token that completed it, and nothing comes."""
        if self.match_owner is not None:
            return Run()
        if not self._stops:
            return run
        held = self._held + run
        found = [(at + len(stop), at) for stop in self._stops if (at := held.text.find(stop)) >= 0]
        if found:
            # The stop that completes first ends the text; of several that complete together, the longest.
            end, start = min(found)
            self.match_owner = held.owners[end - 1]
            self._held = Run()
            return held.part(0, start)
        safe = len(held.text) - held_suffix(held.text, self._stops)
        self._held = held.part(safe)
        return held.part(0, safe)

    def release(self) -> Run:
        """What was held for a stop that can no longer complete."""
        held, self._held = self._held, Run()
        return held


class Trailing:
    """Holds back white space until other text follows it; drops newlines at the very beginning when told."""

    def __init__(self, *, drop_leading: bool) -> None:
        self._drop_leading = drop_leading
        self._held = Run()

    def drop_leading(self) -> None:
        """Newlines from here to the next other text are dropped."""
        self._drop_leading = True

    def feed(self, run: Run) -> Run:
        """What is followed by other text, and that text."""
        if self._drop_leading:
            run = run.without_leading("\r\n")
            if not run:
                return run
            self._drop_leading = False
        held = self._held + run
        shown = held.without_trailing()
        self._held = held.part(len(shown.text))
        return shown

    def release(self) -> Run:
        """The white space at the end."""
        held, self._held = self._held, Run()
        return held
