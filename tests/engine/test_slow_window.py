"""CTR-08: a stop is not held up by a window that takes longer than the deadline."""

from __future__ import annotations

from appliance.engine.handle import FinishReason
from tests.builders.fake_model import FakeModel
from tests.engine.harness import Gate, collect, play, running


def test_ctr_08_streams_end_at_the_deadline_though_the_window_goes_on() -> None:
    model = FakeModel()
    gate = Gate(model)

    async def scenario() -> None:
        async with running(model, slots=1) as run:
            gate.close()
            streaming, waiting = run.ask((1, 2, 3), 30), run.ask((4, 5), 30)
            await gate.reached()
            run.engine.drain(0.0)
            for stream in (streaming, waiting):
                assert (await collect(stream)).finished.reason is FinishReason.CANCELLED
            gate.open()

    play(scenario)
