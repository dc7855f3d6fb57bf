"""What windows cost: measured by their shape, and estimated for shapes that have not come yet; torch-free."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

# Times of one shape that count: a window's cost follows its context slowly.
_KEPT: Final = 8
# Shapes that a curve is drawn through: the latest ones.
_SHAPES: Final = 48
# How many measured times the slopes that were known beforehand are worth.
_PRIOR: Final = 2.0
# A shape's own times count fully beside the curve from about so many on.
_TRUST: Final = 2.0
# Windows of a number of conversations from which on a line goes through them.
_ENOUGH: Final = 16
# No window is shorter, whatever a line says.
_SHORTEST_S: Final = 1e-6
_TERMS: Final = 4


class Shape(NamedTuple):
    """What a decode window's cost depends on: its rows, the conversations in it, and steps of the chain of drafts."""

    rows: int
    conversations: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes:
    """What is expected before anything was measured, as shares of a window of one row without drafts.

    Attributes:
        row: a further row.
        step: a step of the chain for one conversation.
        more: the same step for each further conversation.
    """

    row: float
    step: float
    more: float


# Between windows of 1 and 16 rows, and chains of 4 steps after 5 to 20 rows, of the real shape on the one card that was
# measured (docs/performance.md).
USUAL: Final = Slopes(row=0.055, step=0.055, more=0.012)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A shape that came: the median of its latest times, and how many there are of those."""

    shape: Shape
    seconds: float
    count: int


class CostCurve:
    """Seconds of windows: a line through what was measured, bent to it. Owned by the engine's thread.

    The line has a term for the window itself, its rows, the steps of the chain, and those for further conversations;
    where too little was measured to tell its slopes apart, those that were expected stand, at the measured size. What
    windows of so many rows are off it by holds for every chain after them; what a shape itself took counts most.
    """

    def __init__(self, expected: Slopes = USUAL) -> None:
        """Nothing measured yet."""
        self._expected = (1.0, expected.row, expected.step, expected.more)
        self._times: dict[Shape, deque[float]] = {}
        self._offsets: dict[tuple[int, int], float] = {}
        self._counts: dict[int, int] = {}
        self._spread = 0.0
        self._line: tuple[float, ...] = self._expected
        self._expected_line: tuple[float, ...] = self._expected
        self._medians: dict[Shape, tuple[float, int]] = {}
        self._stale = False

    def note(self, shape: Shape, seconds: float) -> None:
        """A window took so long."""
        times = self._times.pop(shape, None)
        if times is None:
            times = deque(maxlen=_KEPT)
            if len(self._times) == _SHAPES:
                del self._times[next(iter(self._times))]
        times.append(max(seconds, _SHORTEST_S))
        self._times[shape] = times  # the latest is last
        self._counts[shape.conversations] = self._counts.get(shape.conversations, 0) + 1
        self._stale = True

    @property
    def spread(self) -> float:
        """How far times of one shape are off their median, as a share of it: what is nearer cannot be told apart."""
        self._draw()
        return self._spread

    def knows(self, shape: Shape) -> bool:
        """Whether such windows came more than once."""
        return len(self._times.get(shape, ())) > 1

    def knows_company(self, conversations: int) -> bool:
        """Whether enough windows of so many conversations came for a line through them.

        A line through windows of four says nonsense of windows of two, so those go by what was expected at first.
        """
        return self._counts.get(conversations, 0) >= _ENOUGH

    def seconds(self, rows: range, *, conversations: int, steps: int) -> list[float]:
        """Of windows of so many rows; before the first `note` in units of a window of one row."""
        self._draw()
        window, row, step, more = self._line if self.knows_company(conversations) else self._expected_line
        first = window + steps * (step + more * (conversations - 1)) - row
        return [self._bent((count, conversations, steps), first + row * count) for count in rows]

    def _bent(self, shape: tuple[int, int, int], line: float) -> float:
        line += self._offsets.get(shape[:2], 0.0)
        found = self._medians.get(shape)  # type: ignore[call-overload]
        if found is not None:
            median, count = found
            line = (count * median + _TRUST * line) / (count + _TRUST)
        return max(line, _SHORTEST_S)

    def measured(self) -> tuple[Measured, ...]:
        """Everything that came, in the order of conversations, rows and steps."""
        self._draw()
        found = [Measured(shape=shape, seconds=s, count=count) for shape, (s, count) in self._medians.items()]
        return tuple(sorted(found, key=lambda one: (one.shape.conversations, one.shape.rows, one.shape.steps)))

    def _draw(self) -> None:
        if not self._stale:
            return
        self._stale = False
        self._medians = {shape: (statistics.median(times), len(times)) for shape, times in self._times.items()}
        off_by = [abs(one / self._medians[shape][0] - 1) for shape, times in self._times.items() for one in times]
        self._spread = statistics.median(off_by)
        points = [(_features(shape), median, count) for shape, (median, count) in self._medians.items()]
        size = sum(m * n for _, m, n in points) / sum(_value(self._expected, f) * n for f, _, n in points)
        self._expected_line = tuple(size * one for one in self._expected)
        self._line = _fit(points, self._expected_line)
        off: dict[tuple[int, int], tuple[float, int]] = {}
        for shape, (median, count) in self._medians.items():
            total, weight = off.get(shape[:2], (0.0, 0))
            line = self._line if self.knows_company(shape.conversations) else self._expected_line
            off[shape[:2]] = total + count * (median - _value(line, _features(shape))), weight + count
        self._offsets = {rows: total / (weight + _TRUST) for rows, (total, weight) in off.items()}


def _features(shape: Shape) -> tuple[float, ...]:
    return (1.0, shape.rows - 1.0, float(shape.steps), shape.steps * (shape.conversations - 1.0))


def _value(line: Sequence[float], features: Sequence[float]) -> float:
    return sum([slope * feature for slope, feature in zip(line, features, strict=True)])


def _fit(points: Sequence[tuple[Sequence[float], float, int]], expected: Sequence[float]) -> tuple[float, ...]:
    """The line with the least squared distances, of the points and of its slopes from the expected ones.

    Args:
        points: features, seconds and weight of each shape.
        expected: slopes in seconds; how far one may be off is measured by itself.
    """
    matrix = [[0.0] * _TERMS for _ in range(_TERMS)]
    wanted = [0.0] * _TERMS
    for features, seconds, weight in points:
        for i in range(_TERMS):
            wanted[i] += weight * features[i] * seconds
            for j in range(_TERMS):
                matrix[i][j] += weight * features[i] * features[j]
    for i in range(_TERMS):
        # A slope that is off by itself weighs as much as a window that is off by a tenth.
        pull = _PRIOR * (0.1 * expected[0] / expected[i]) ** 2 if i else 0.0
        matrix[i][i] += pull + 1e-9
        wanted[i] += pull * expected[i]
    return tuple(max(0.0, slope) for slope in _solved(matrix, wanted))


def _solved(matrix: list[list[float]], wanted: list[float]) -> list[float]:
    """Of linear equations whose matrix is symmetric and positive."""
    for i in range(_TERMS):
        for j in range(i + 1, _TERMS):
            share = matrix[j][i] / matrix[i][i]
            wanted[j] -= share * wanted[i]
            for k in range(i, _TERMS):
                matrix[j][k] -= share * matrix[i][k]
    found = [0.0] * _TERMS
    for i in reversed(range(_TERMS)):
        rest = sum(matrix[i][k] * found[k] for k in range(i + 1, _TERMS))
        found[i] = (wanted[i] - rest) / matrix[i][i]
    return found
