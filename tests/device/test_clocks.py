"""How long stages worked and waited: windows that overlap count once, and only what is over counts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from appliance.model.qwen4exp.device import clocks
from appliance.model.qwen4exp.device.clocks import Mark, StageClock, WorkingTime


@pytest.mark.parametrize(
    ("happened", "seconds"),
    [
        pytest.param("", 0, id="nothing"),
        pytest.param("(", 0, id="on its way"),
        pytest.param("(2)", 2, id="one window"),
        pytest.param("(1)5(2)", 3, id="nobody wanted one in between"),
        pytest.param("(1(2)3)", 6, id="two overlap"),
        pytest.param("(1(1(1)1)1)4(1)", 6, id="three, and one later"),
    ],
)
def test_working_time(happened: str, seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: now[0])
    working = WorkingTime()
    for what in happened:
        if what == "(":
            working.begin()
        elif what == ")":
            working.end()
        else:
            now[0] += int(what)
    assert working.total_s == seconds


@dataclass
class Moment:
    """An event that was recorded at a time in milliseconds."""

    at_ms: float = 0.0

    def record(self, stream: list[float]) -> None:
        self.at_ms = stream[0]

    def elapsed_time(self, end: Moment) -> float:
        return end.at_ms - self.at_ms


@dataclass
class FakeStage:
    stream: list[float]
    device: str = "cuda:1"
    layers: range = range(12, 24)


def test_a_stage_adds_up_what_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two windows of a lane; the second is on its way before the first one's times are read."""
    monkeypatch.setattr(clocks, "_new_marks", lambda: [Moment() for _ in Mark])
    stage = FakeStage([0.0])
    clock = StageClock(stage, lanes=2, route="ram")  # type: ignore[arg-type]

    def window(lane: int, *moments: float) -> None:
        for mark, at_ms in zip(Mark, moments, strict=True):
            stage.stream[0] = at_ms
            clock.mark(lane, mark)

    window(1, 10.0, 10.5, 14.5, 15.0)
    clock.over(1)
    window(1, 20.0, 21.0, 23.0, 23.5)
    clock.tally()
    assert clock.status(1.0).busy_s == pytest.approx(0.004)
    clock.over(1)
    found = clock.status(0.05)
    assert (found.windows, found.device, found.route) == (2, "cuda:1", "ram")
    assert (found.first_layer, found.past_layer) == (12, 24)
    assert found.busy_s == pytest.approx(0.006)
    assert found.handoff_s == pytest.approx(0.0025)
    assert found.idle_s == pytest.approx(0.044)
