"""Collects what is wrong with a model file, so that one message can list all of it."""

from __future__ import annotations

from typing import Final

from appliance.errors import ModelFileError
from appliance.gguf.metadata import Metadata

_LISTED: Final = 100
_MAX_COUNT: Final = 1 << 24


class Problems:
    """Sentences about one file, in the order in which they were found."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._sentences: list[str] = []

    def add(self, sentence: str) -> None:
        """Adds one contradiction: key or tensor, value, rule."""
        if sentence not in self._sentences:
            self._sentences.append(sentence)

    def raise_if_any(self) -> None:
        """Ends the reading when something was found.

        Raises:
            ModelFileError: one line with every sentence.
        """
        found = self._sentences
        if not found:
            return
        if len(found) == 1:
            raise ModelFileError(f"{self.where}: {found[0]}")
        listing = "; ".join(f"({n}) {s}" for n, s in enumerate(found[:_LISTED], start=1))
        more = f"; and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        raise ModelFileError(f"{self.where}: {len(found)} contradictions: {listing}{more}")


class Keys:
    """Getters that add a problem and return the least allowed value, so that reading goes on to the next key."""

    def __init__(self, metadata: Metadata, problems: Problems, *, prefix: str = "") -> None:
        self.metadata = metadata
        self._problems = problems
        self._prefix = prefix

    def count(self, key: str, *, low: int = 1, high: int = _MAX_COUNT, default: int | None = None) -> int:
        """A scalar integer from low to high."""
        name = self._prefix + key
        if default is not None and name not in self.metadata:
            return default
        try:
            value = self.metadata.int_(name)
        except ModelFileError as error:
            self._add(error)
            return low
        return self._bounded(name, value, low, high)

    def same(self, key: str) -> int:
        """A positive integer, or an array of one entry for each layer whose non-zero entries are all the same."""
        name = self._prefix + key
        if not self.metadata.is_array(name):
            return self.count(key)
        values = sorted(set(self.ints(key, low=0)) - {0})
        if len(values) != 1:
            self._problems.add(f"{name} has the values {values[:8]}; it must have exactly one value that is not zero")
            return 1
        return self._bounded(name, values[0], 1, _MAX_COUNT)

    def number(self, key: str, *, low: float, high: float) -> float:
        """A number above low, up to high."""
        name = self._prefix + key
        try:
            value = self.metadata.float_(name)
        except ModelFileError as error:
            self._add(error)
            return high
        if not low < value <= high:
            self._problems.add(f"{name} is {value:g}; it must be above {low:g} and at most {high:g}")
        return value

    def ints(self, key: str, *, low: int, high: int = _MAX_COUNT, least: int = 0) -> tuple[int, ...]:
        """An array of integers from low to high, with at least so many entries."""
        name = self._prefix + key
        try:
            values = self.metadata.ints(name)
        except ModelFileError as error:
            self._add(error)
            return ()
        if len(values) < least:
            self._problems.add(f"{name} has {len(values)} entries; it must have at least {least}")
        wrong = [v for v in values if not low <= v <= high]
        if wrong:
            self._problems.add(f"{name} contains {wrong[0]}; its entries must be {low} to {high}")
        return values

    def strings(self, key: str) -> tuple[str, ...]:
        """An array of strings with at least one entry."""
        name = self._prefix + key
        try:
            values = self.metadata.strings(name)
        except ModelFileError as error:
            self._add(error)
            return ()
        if not values:
            self._problems.add(f"{name} is empty; it must have an entry for each token")
        return values

    def _bounded(self, name: str, value: int, low: int, high: int) -> int:
        if low <= value <= high:
            return value
        self._problems.add(f"{name} is {value}; it must be {low} to {high}")
        return low

    def _add(self, error: ModelFileError) -> None:
        self._problems.add(error.message.removeprefix(f"{self.metadata.where}: "))
