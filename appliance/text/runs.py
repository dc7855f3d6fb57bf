"""Text that remembers which output tokens it came from, and the decoder that makes it from token bytes."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """owners[i] is the output position of the token that completed character i."""

    text: str = ""
    owners: tuple[int, ...] = ()

    def __add__(self, other: Run) -> Run:
        return Run(self.text + other.text, self.owners + other.owners)

    def __bool__(self) -> bool:
        return bool(self.text)

    def part(self, start: int, end: int | None = None) -> Run:
        """The characters from start to end."""
        return Run(self.text[start:end], self.owners[start:end])

    def without_leading(self, characters: str) -> Run:
        """As str.lstrip."""
        return self.part(len(self.text) - len(self.text.lstrip(characters)))

    def without_trailing(self) -> Run:
        """As str.rstrip."""
        return self.part(0, len(self.text.rstrip()))


class Utf8:
    """Bytes of tokens to characters: incomplete ones wait, each that cannot become one is a single U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting: list[int] = []
        self._earlier: dict[int, tuple[int, ...]] = {}

    def feed(self, data: bytes, position: int) -> Run:
        """Characters that are complete with the token at this position."""
        return self._give(self._decoder.decode(data), position)

    def flush(self) -> Run:
        """What waits, as a replacement: nothing can complete it any more."""
        if not self._waiting:
            return Run()
        return self._give(self._decoder.decode(b"", final=True), self._waiting.pop())

    def positions(self, owners: Iterable[int]) -> tuple[int, ...]:
        """The owners once each, with the earlier tokens whose bytes they completed."""
        found = dict.fromkeys(owners)
        return tuple(sorted({q for p in found for q in (*self._earlier.pop(p, ()), p)}))

    def _give(self, text: str, position: int) -> Run:
        if text and self._waiting:
            self._earlier[position] = tuple(self._waiting)
            self._waiting = []
        if self._decoder.getstate()[0]:
            self._waiting.append(position)
        return Run(text, (position,) * len(text))


def held_suffix(text: str, markers: Iterable[str]) -> int:
    """Length of the longest end of text that a marker could still begin with."""
    longest = 0
    for marker in markers:
        for size in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:size]):
                longest = size
                break
    return longest
