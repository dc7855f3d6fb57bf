"""The time a device waits for the host: which gaps count, and what is told of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from appliance.model import host_gaps
from appliance.model.host_gaps import KEPT, HostGaps


class Clock:
    """A clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(host_gaps.time, "perf_counter", lambda: self.now_s)

    def gap(self, gaps: HostGaps, seconds: float) -> None:
        gaps.seen()
        self.now_s += seconds
        gaps.submitted()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def nobody_came(gaps: HostGaps) -> None:
    gaps.seen()
    gaps.interrupted()
    gaps.submitted()


@pytest.mark.parametrize(
    "happened",
    [lambda gaps: None, HostGaps.seen, HostGaps.submitted, nobody_came],
    ids=["nothing", "one window ended", "the first window", "idle between"],
)
def test_no_gap_no_times(happened: Callable[[HostGaps], None]) -> None:
    gaps = HostGaps()
    happened(gaps)
    assert gaps.times() is None


def test_percentiles(clock: Clock) -> None:
    gaps = HostGaps()
    for number in range(1, 101):
        clock.gap(gaps, number * 1e-6)
    found = gaps.times()
    assert found is not None
    assert (found.windows, round(1e6 * found.p50_s), round(1e6 * found.p99_s)) == (100, 50, 99)
    assert round(1e6 * found.most_s) == 100


def test_a_device_that_has_another_window_does_not_wait(clock: Clock) -> None:
    gaps = HostGaps()
    for number, idle in enumerate((False, False, True, False), start=1):
        gaps.seen()
        clock.now_s += number * 1e-3
        gaps.submitted(idle=idle)
    found = gaps.times()
    assert found is not None
    assert (found.p50_s, round(1e3 * found.p99_s)) == (0.0, 3)
    assert (round(1e3 * found.turn_p50_s), round(1e3 * found.turn_p99_s)) == (2, 4)


def test_old_windows_are_forgotten(clock: Clock) -> None:
    gaps = HostGaps()
    for _ in range(5):
        clock.gap(gaps, 9.0)
    for _ in range(KEPT):
        clock.gap(gaps, 1e-3)
    found = gaps.times()
    assert found is not None
    assert (found.windows, round(1e3 * found.most_s)) == (KEPT, 1)
