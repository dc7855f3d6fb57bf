"""The two ways of stepping: a model that draws and accepts itself gives the answers of the plain order."""

from __future__ import annotations

import asyncio

import pytest

from appliance.scheduler.request import SamplingParams
from tests.builders.stepping_model import ROWS, SteppingModel
from tests.engine.harness import GREEDY, PROMPTS, collect, play, running

SPAN = 5


def test_answers_of_a_model_that_steps() -> None:
    """Prompts in small pieces, drafts right and wrong, several conversations: the answers of the plain order."""
    model = SteppingModel()

    async def scenario() -> None:
        async with running(model, max_rows=ROWS, span_rows=SPAN) as run:
            answers = await asyncio.gather(*(collect(run.ask(prompt, 24)) for prompt in PROMPTS))
            for prompt, answer in zip(PROMPTS, answers, strict=True):
                assert answer.ids == model.greedy(prompt, 24)
            assert sum(run.status().drafts.accepted) > 0
            assert run.faults == []

    play(scenario)
    assert model.steps == len(model.windows) - 2  # the self-test's two prompts go the plain way
    assert all(len(span.tokens) <= SPAN for window in model.windows[2:] for span in window.spans)


def test_what_a_step_cannot_draw_goes_the_plain_way() -> None:
    model = SteppingModel()

    async def scenario() -> None:
        async with running(model, max_rows=ROWS) as run:
            one, two = await asyncio.gather(
                collect(run.ask(PROMPTS[1], 6, top_logprobs=2)),
                collect(run.ask(PROMPTS[2], 6, sampling=SamplingParams(temperature=0.7, seed=3))),
            )
            assert one.ids == model.greedy(PROMPTS[1], 6)
            assert len(one.logprobs) == 6
            assert len(two.ids) == 6
            assert model.steps == 0
            assert (await collect(run.ask(PROMPTS[3], 6, sampling=GREEDY))).ids == model.greedy(PROMPTS[3], 6)
            assert model.steps > 0

    play(scenario)


@pytest.mark.parametrize("windows", [2, 3, 5])
def test_what_was_drawn_before_a_fault_is_delivered(windows: int) -> None:
    model = SteppingModel(fails_after=windows)

    async def scenario() -> None:
        async with running(model, max_rows=ROWS, draft_max=0) as run:
            answer = await collect(run.ask(PROMPTS[0], 24))
            assert answer.ids == model.greedy(PROMPTS[0], windows)
            assert answer.finished.fatal
            assert "lost" in (answer.finished.error or "")

    play(scenario)


def test_a_device_that_kept_other_rows_is_a_fault() -> None:
    model = SteppingModel(lie=1)

    async def scenario() -> None:
        async with running(model, max_rows=ROWS) as run:
            answer = await collect(run.ask(PROMPTS[1], 6))
            assert answer.finished.fatal
            assert "their states differ" in (answer.finished.error or "")

    play(scenario)


@pytest.mark.parametrize(("slots", "rows", "fits"), [(4, 4, True), (4, 3, False)])
def test_slots_need_a_row_each(slots: int, rows: int, fits: bool) -> None:
    from appliance.engine.config import EngineConfig
    from appliance.errors import RigError

    sizes = {"slots": slots, "page_tokens": 4, "pages": 64, "max_tokens": 64, "max_rows": rows}
    if fits:
        assert EngineConfig(**sizes).window_rows == rows
    else:
        with pytest.raises(RigError, match="windows of as many rows"):
            EngineConfig(**sizes)
