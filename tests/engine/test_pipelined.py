"""The pipelined loop: the tokens of one group whatever is on its way, oldest first, nothing lost at an end or fault."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from appliance.scheduler.request import FinishReason
from tests.builders.stepping_model import ROWS, StagedFake
from tests.engine.harness import PROMPTS, Gate, Running, collect, play, running

LONG = tuple(range(60)) * 2


def in_flight(model: StagedFake) -> Iterator[list[int]]:
    """Groups on their way, oldest first, after each submit or collect; fails where another one is collected first."""
    flying: list[int] = []
    for what, group in model.log:
        if what == "submit":
            flying.append(group)
        else:
            assert flying.pop(0) == group, "collected out of order"
        yield list(flying)


@pytest.mark.parametrize("draft_max", [3, 0], ids=["drafts", "no drafts"])
@pytest.mark.parametrize(
    ("groups", "users", "most"),
    [(2, 1, 1), (2, 2, 2), (3, 2, 2), (2, 8, 2), (3, 8, 3), (4, 8, 4)],
    ids=str,
)
def test_answers_are_those_of_one_group(groups: int, users: int, most: int, draft_max: int) -> None:
    model = StagedFake()

    async def scenario() -> None:
        async with running(model, slots=8, groups=groups, max_rows=ROWS, draft_max=draft_max) as run:
            gate = Gate(model)
            gate.close()  # nobody has all tokens before the last one has asked
            streams = [run.ask(prompt, 24) for prompt in PROMPTS[:users]]
            gate.open()
            answers = await asyncio.gather(*map(collect, streams))
            assert [answer.ids for answer in answers] == [model.greedy(prompt, 24) for prompt in PROMPTS[:users]]
            assert run.status().timings.generated_tokens == 24 * users
            assert run.faults == []

    play(scenario)
    assert max(len(flying) for flying in in_flight(model)) == most
    assert model.flying == {}


@pytest.mark.parametrize(("groups", "reads"), [(1, 3), (2, 0)], ids=["one group", "one stage"])
def test_one_group_or_one_stage_is_the_plain_loop(groups: int, reads: int) -> None:
    model = StagedFake()
    model.reads = reads

    async def scenario() -> None:
        async with running(model, groups=groups, max_rows=ROWS) as run:
            answers = await asyncio.gather(*(collect(run.ask(prompt, 12)) for prompt in PROMPTS[:3]))
            assert [answer.ids for answer in answers] == [model.greedy(prompt, 12) for prompt in PROMPTS[:3]]

    play(scenario)
    assert model.steps > 0
    assert model.log == []


def test_joins_leaves_and_a_long_prompt_in_the_middle() -> None:
    """One decodes; others come, one of them with a long prompt; two go; all texts are right to the end."""
    model = StagedFake()

    async def scenario(run: Running) -> None:
        first = asyncio.create_task(collect(run.ask(PROMPTS[1], 120)))
        short = [collect(run.ask(PROMPTS[2], 5)), collect(run.ask(PROMPTS[3], 9))]
        others = [collect(run.ask(prompt, 60)) for prompt in (LONG, PROMPTS[4])]
        answers = await asyncio.gather(*short, *others)
        lengths = (5, 9, 60, 60)
        prompts = (PROMPTS[2], PROMPTS[3], LONG, PROMPTS[4])
        for answer, prompt, count in zip(answers, prompts, lengths, strict=True):
            assert answer.ids == model.greedy(prompt, count)
        assert (await first).ids == model.greedy(PROMPTS[1], 120)
        assert run.faults == []

    async def whole() -> None:
        async with running(model, slots=8, groups=2, max_rows=ROWS, prompt_chunk=8, max_tokens=250) as run:
            await scenario(run)

    play(whole)
    assert max(len(flying) for flying in in_flight(model)) == 2
    # Whoever is left at the end is alone, so the last windows are of one group.
    assert [len(flying) for flying in in_flight(model)][-6:] == [1, 0, 1, 0, 1, 0]


def test_those_who_stay_are_shared_out_again() -> None:
    """Four in two groups; both of one group go; the two that stay are on their way side by side."""
    model = StagedFake()

    async def scenario() -> None:
        async with running(model, slots=4, groups=2, max_rows=ROWS) as run:
            gate = Gate(model)
            gate.close()
            lengths = (60, 4, 60, 4)  # every other one joins the second group
            tasks = [asyncio.create_task(collect(run.ask(PROMPTS[n], count))) for n, count in enumerate(lengths)]
            await gate.reached()
            gate.open()
            for task, prompt, count in zip(tasks, PROMPTS, lengths, strict=False):
                assert (await task).ids == model.greedy(prompt, count)

    play(scenario)
    alone = [window.spans[0].slot for window in model.windows if len(window.spans) == 1]
    assert len(set(alone[-8:])) == 2
    assert [len(flying) for flying in in_flight(model)].count(2) > 10


def lanes_of_reads(model: StagedFake) -> list[int]:
    """Chunks on their way after each submit or collect."""
    return [sum(lane >= 2 for lane in flying) for flying in in_flight(model)]


def test_a_lone_long_prompt_is_on_every_stage() -> None:
    model = StagedFake()

    async def scenario() -> None:
        async with running(model, groups=2, max_rows=ROWS, span_rows=4, chunk_rows=16) as run:
            assert (await collect(run.ask(LONG, 30))).ids == model.greedy(LONG, 30)
            assert run.status().timings.prompt_tokens == len(LONG)

    play(scenario)
    assert max(lanes_of_reads(model)) == model.reads
    assert model.flying == {}


def test_windows_of_others_pass_between_chunks() -> None:
    """A chunk for every stage, none to spare; between two chunks' ends the others have a window each."""
    model = StagedFake()

    async def scenario() -> None:
        async with running(model, groups=2, max_rows=ROWS, span_rows=4, chunk_rows=16) as run:
            under_way = asyncio.Event()
            others = [
                asyncio.create_task(collect(run.ask(PROMPTS[n], 120), after=lambda answer: under_way.set()))
                for n in (1, 2)
            ]
            await under_way.wait()
            prompts = (LONG, LONG[::-1])
            long = await asyncio.gather(*(collect(run.ask(prompt, 8)) for prompt in prompts))
            assert [answer.ids for answer in long] == [model.greedy(prompt, 8) for prompt in prompts]
            for task, n in zip(others, (1, 2), strict=True):
                assert (await task).ids == model.greedy(PROMPTS[n], 120)

    play(scenario)
    chunks = [n for n, (what, lane) in enumerate(model.log) if what == "collect" and lane >= 2]
    windows = [n for n, (what, lane) in enumerate(model.log) if what == "collect" and lane < 2]
    assert max(lanes_of_reads(model)) == model.reads - 1
    assert len(chunks) >= 2 * len(LONG) // 16
    for before, after in zip(chunks, chunks[2:], strict=False):
        assert any(before < window < after for window in windows)


@pytest.mark.parametrize("leaves", [True, False], ids=["cancelled", "cannot be drawn in a step"])
def test_a_long_prompt_that_ends_otherwise(leaves: bool) -> None:
    model = StagedFake()

    async def scenario() -> None:
        async with running(model, groups=2, max_rows=ROWS, span_rows=4, chunk_rows=16) as run:
            gate = Gate(model)
            gate.close()
            stream = run.ask(LONG, 20, top_logprobs=None if leaves else 1)
            await gate.reached()
            if leaves:
                stream.cancel()
            gate.open()
            answer = await collect(stream)
            assert answer.ids == ([] if leaves else model.greedy(LONG, 20))
            assert (await collect(run.ask(LONG[::-1], 9))).ids == model.greedy(LONG[::-1], 9)

    play(scenario)
    assert model.flying == {}


@pytest.mark.parametrize("groups", [2, 3])
def test_who_leaves_is_gone_when_its_window_is_back(groups: int) -> None:
    model = StagedFake()

    async def scenario() -> None:
        async with running(model, slots=4, groups=groups, max_rows=ROWS) as run:
            stream = run.ask(PROMPTS[1], 200)
            other = asyncio.create_task(collect(run.ask(PROMPTS[2], 40)))
            gone = await collect(stream, after=lambda answer: stream.cancel() if len(answer.ids) > 3 else None)
            assert gone.finished.reason is FinishReason.CANCELLED
            assert gone.ids == model.greedy(PROMPTS[1], 200)[: len(gone.ids)]
            assert (await other).ids == model.greedy(PROMPTS[2], 40)
            # Its slot and pages serve the next one.
            assert (await collect(run.ask(PROMPTS[3], 30))).ids == model.greedy(PROMPTS[3], 30)

    play(scenario)


def test_what_a_step_cannot_draw_goes_the_plain_way_beside_the_others() -> None:
    model = StagedFake()

    async def scenario() -> None:
        async with running(model, slots=4, groups=2, max_rows=ROWS) as run:
            plain, other = await asyncio.gather(
                collect(run.ask(PROMPTS[1], 20, top_logprobs=2)), collect(run.ask(PROMPTS[2], 20))
            )
            assert plain.ids == model.greedy(PROMPTS[1], 20)
            assert len(plain.logprobs) == 20
            assert other.ids == model.greedy(PROMPTS[2], 20)
            alone = await collect(run.ask(PROMPTS[3], 5, top_logprobs=1))
            assert alone.ids == model.greedy(PROMPTS[3], 5)

    play(scenario)
    assert 0 < model.steps < len(model.windows) - 2


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param({"lost_at": 0}, id="the first window"),
        pytest.param({"lost_at": 7}, id="a window of the second group"),
        pytest.param({"fails_after": 5}, id="while others are on their way"),
        pytest.param({"lost_at": 2}, id="a chunk of a prompt"),
    ],
)
def test_an_error_in_one_stage_ends_everything(fault: dict[str, int]) -> None:
    model = StagedFake(**fault)
    gate = Gate(model)

    async def scenario() -> None:
        async with running(model, groups=2, max_rows=ROWS, span_rows=4, chunk_rows=16, draft_max=0) as run:
            prompts = (*PROMPTS[:3], LONG)
            gate.close()  # the fault comes when everybody has asked
            streams = [run.ask(prompt, 24) for prompt in prompts]
            gate.open()
            answers = await asyncio.gather(*map(collect, streams))
            for prompt, answer in zip(prompts, answers, strict=True):
                assert answer.finished.fatal
                assert "lost" in (answer.finished.error or "")
                assert answer.ids == model.greedy(prompt, 24)[: len(answer.ids)]
            await asyncio.wait_for(run.fault_seen.wait(), 10)
            assert len(run.faults) == 1

    play(scenario)


def test_a_prompt_of_which_the_device_kept_other_rows_is_a_fault() -> None:
    model = StagedFake(lie=-1)

    async def scenario() -> None:
        async with running(model, groups=2, max_rows=ROWS, span_rows=4, chunk_rows=16) as run:
            answer = await collect(run.ask(LONG, 6))
            assert answer.finished.fatal
            assert "of a prompt's 16; their states differ" in (answer.finished.error or "")

    play(scenario)


@pytest.mark.parametrize("drain_s", [None, 0.0], ids=["stop", "drain"])
def test_an_end_waits_for_what_is_on_its_way(drain_s: float | None) -> None:
    model = StagedFake()

    async def scenario() -> None:
        async with running(model, slots=4, groups=3, max_rows=ROWS) as run:
            streams = [run.ask(prompt, 200) for prompt in PROMPTS[:3]]
            under_way = asyncio.Event()
            tasks = [
                asyncio.create_task(collect(one, after=lambda answer: under_way.set() if len(answer.ids) > 3 else None))
                for one in streams
            ]
            await under_way.wait()
            if drain_s is None:
                await asyncio.to_thread(run.engine.stop)
            else:
                run.engine.drain(drain_s)
            for task, prompt in zip(tasks, PROMPTS, strict=False):
                answer = await task
                assert answer.finished.reason is FinishReason.CANCELLED
                assert answer.ids == model.greedy(prompt, 200)[: len(answer.ids)]

    play(scenario)
    assert model.flying == {}
