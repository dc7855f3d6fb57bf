"""The loop that sends windows ahead: the plain order's texts, whoever comes, goes or ends meanwhile."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from appliance.scheduler.request import FinishReason, SamplingParams
from tests.builders.ahead_model import AheadFake
from tests.builders.stepping_model import ROWS
from tests.engine.harness import PROMPTS, SMALL, Answer, Gate, Running, collect, play, running

LONG = tuple(range(60)) * 2


def depths(model: AheadFake) -> list[int]:
    """Windows on their way after each submit and collect; fails where one is collected before an older one."""
    found: list[int] = []
    lanes: list[int] = []
    for what, lane, _ in model.log:
        if what == "submit":
            lanes.append(lane)
        else:
            assert lanes.pop(0) == lane, "collected out of order"
        found.append(len(lanes))
    return found


def together(model: AheadFake, asks: list[tuple[tuple[int, ...], int, dict[str, Any]]], **config: Any) -> list[Answer]:
    """The answers of clients that ask at the same time; everything is free afterwards."""
    found: list[Answer] = []

    async def scenario() -> None:
        async with running(model, **{"slots": 8, "max_rows": ROWS, **config}) as run:
            tasks = [collect(run.ask(prompt, tokens, **fields)) for prompt, tokens, fields in asks]
            found.extend(await asyncio.gather(*tasks))
            assert run.faults == []
            # The next one finds slots and pages free, the dropped rows of those before it gone.
            again = await collect(run.ask(PROMPTS[1], 9))
            assert again.ids == model.greedy(PROMPTS[1], 9)
            assert run.status().cache.pages_used == 0

    play(scenario)
    assert max(depths(model)) == 2
    assert model.flying == {}
    return found


@pytest.mark.parametrize("draft_max", [3, 1, 0], ids=["drafts", "one draft", "no drafts"])
@pytest.mark.parametrize("users", [1, 2, 3, 8])
def test_answers_are_those_of_the_plain_order(users: int, draft_max: int) -> None:
    model = AheadFake()
    answers = together(model, [(prompt, 24, {}) for prompt in PROMPTS[:users]], draft_max=draft_max)
    assert [answer.ids for answer in answers] == [model.greedy(prompt, 24) for prompt in PROMPTS[:users]]
    assert {answer.finished.reason for answer in answers} == {FinishReason.LENGTH}
    assert any(answer.finished.usage.drafts_accepted for answer in answers) == (draft_max > 0)


@pytest.mark.parametrize("tokens", range(1, 12))
def test_every_length(tokens: int) -> None:
    model = AheadFake()
    answers = together(model, [(prompt, tokens + turn, {}) for turn, prompt in enumerate(PROMPTS[:3])])
    for turn, answer in enumerate(answers):
        assert answer.ids == model.greedy(PROMPTS[turn], tokens + turn)


def test_a_conversation_that_fills_its_context() -> None:
    """Rows that are sent after its end lie behind its pages and are nobody's."""
    model = AheadFake()
    answers = together(model, [(LONG, 8, {}), (PROMPTS[2], 40, {})], max_tokens=128, pages=64, prompt_chunk=12)
    assert answers[0].ids == model.greedy(LONG, 8)
    assert answers[1].ids == model.greedy(PROMPTS[2], 40)


@pytest.mark.parametrize("place", range(1, 14))
def test_a_stop_wherever_it_falls_in_a_window(place: int) -> None:
    """A drawn token, an accepted draft in the middle, the last one: the text ends there and nobody else notices."""
    model = AheadFake()
    whole = model.greedy(PROMPTS[3], 30)
    first = next(at for at in range(place, 30) if whole[at] not in whole[:at])
    stops = {"stop_token_ids": frozenset({whole[first]})}
    answers = together(model, [(PROMPTS[3], 30, stops), (PROMPTS[4], 30, {}), (PROMPTS[5], 30, {})])
    assert answers[0].ids == whole[:first]
    assert answers[0].finished.reason is FinishReason.STOP
    assert answers[0].finished.usage.completion_tokens == first + 1
    assert [answer.ids for answer in answers[1:]] == [model.greedy(prompt, 30) for prompt in PROMPTS[4:6]]


def test_nothing_is_sent_for_one_whose_end_is_known() -> None:
    """Without drafts a window yields one token, so the host knows which is the last: no row is wasted."""
    model = AheadFake()

    async def scenario() -> None:
        async with running(model, max_rows=ROWS, draft_max=0) as run:
            assert len((await collect(run.ask(PROMPTS[0], 7))).ids) == 7

    play(scenario)
    submits = [rows for what, _, rows in model.log if what == "submit"]
    assert [sum(rows.values()) for rows in submits] == [len(PROMPTS[0])] + [1] * 6


def test_others_go_on_in_the_window_after_an_end() -> None:
    """Joins and leaves in the middle of texts, many more requests than slots."""
    model = AheadFake()

    async def scenario() -> None:
        async with running(model, slots=3, max_rows=ROWS, pages=100) as run:
            counts = [5, 31, 2, 17, 9, 1, 23, 12] * 2
            asks = [(PROMPTS[n % 8], count) for n, count in enumerate(counts)]
            answers = await asyncio.gather(*(collect(run.ask(prompt, count)) for prompt, count in asks))
            for (prompt, count), answer in zip(asks, answers, strict=True):
                assert answer.ids == model.greedy(prompt, count)
            assert run.status().timings.generated_tokens == sum(counts)
            assert run.status().timings.prompt_tokens == sum(len(prompt) for prompt, _ in asks)
            assert run.status().requests_finished["length"] == len(asks)

    play(scenario)
    assert max(depths(model)) == 2


@pytest.mark.parametrize("chunk_rows", [None, 16], ids=["in windows", "in chunks"])
def test_a_long_prompt_beside_others(chunk_rows: int | None) -> None:
    model = AheadFake()
    config = {"span_rows": 4, "chunk_rows": chunk_rows, "prompt_chunk": 8}
    asks = [(PROMPTS[1], 60, {}), (LONG, 9, {}), (PROMPTS[2], 40, {})]
    answers = together(model, asks, **config)
    for (prompt, count, _), answer in zip(asks, answers, strict=True):
        assert answer.ids == model.greedy(prompt, count)


def chunks_on_their_way(model: AheadFake, rows: int) -> Iterator[int]:
    """Windows of more than `rows` rows on their way after each submit and collect."""
    sizes: list[int] = []
    for what, _, by_slot in model.log:
        if what == "submit":
            sizes.append(sum(by_slot.values()))
        else:
            sizes.pop(0)
        yield sum(size > rows for size in sizes)


@pytest.mark.parametrize("others", [0, 2])
def test_one_chunk_of_a_long_prompt_is_on_its_way_at_most(others: int) -> None:
    """So whoever comes waits for one chunk and a window."""
    model = AheadFake()
    asks: list[tuple[tuple[int, ...], int, dict[str, Any]]] = [(LONG, 6, {}), (LONG[::-1], 6, {})]
    asks += [(prompt, 80, {}) for prompt in PROMPTS[:others]]
    answers = together(model, asks, span_rows=4, chunk_rows=16, slots=4)
    assert [answer.ids for answer in answers] == [model.greedy(prompt, count) for prompt, count, _ in asks]
    assert max(chunks_on_their_way(model, ROWS)) == 1


@pytest.mark.parametrize("tokens", [1, 2])
def test_an_answer_that_ends_with_its_prompt_s_last_window(tokens: int) -> None:
    model = AheadFake()
    answers = together(model, [(LONG, tokens, {}), (PROMPTS[0], 20, {})])
    assert answers[0].ids == model.greedy(LONG, tokens)
    assert answers[0].finished.reason is FinishReason.LENGTH
    assert answers[1].ids == model.greedy(PROMPTS[0], 20)


def test_who_leaves_is_out_of_the_next_window_and_its_slot_waits_for_the_last() -> None:
    model = AheadFake()

    async def scenario() -> None:
        async with running(model, slots=2, max_rows=ROWS) as run:
            stream = run.ask(PROMPTS[1], 200)
            other = asyncio.create_task(collect(run.ask(PROMPTS[2], 60)))
            waits = asyncio.create_task(collect(run.ask(PROMPTS[3], 30)))
            gone = await collect(stream, after=lambda answer: stream.cancel() if len(answer.ids) > 3 else None)
            assert gone.finished.reason is FinishReason.CANCELLED
            assert gone.ids == model.greedy(PROMPTS[1], 200)[: len(gone.ids)]
            assert (await other).ids == model.greedy(PROMPTS[2], 60)
            assert (await waits).ids == model.greedy(PROMPTS[3], 30)
            assert run.status().cache.pages_used == 0

    play(scenario)


def test_a_new_request_is_in_the_window_after_the_next() -> None:
    """Fair to arrivals: when it comes, one window is computed and one is sent; the one after those has its prompt."""
    model = AheadFake()

    async def scenario() -> None:
        async with running(model, slots=2, max_rows=ROWS) as run:
            gate = Gate(model)
            first = asyncio.create_task(collect(run.ask(PROMPTS[1], 90)))
            gate.close()
            await gate.reached()
            sent = sum(what == "submit" for what, *_ in model.log)
            second = run.ask(PROMPTS[2], 5)
            gate.open()
            assert (await collect(second)).ids == model.greedy(PROMPTS[2], 5)
            assert (await first).ids == model.greedy(PROMPTS[1], 90)
            after = [rows for what, _, rows in model.log if what == "submit"][sent - 1 :]
            assert len(after[0]) == 1
            assert next(n for n, rows in enumerate(after) if len(rows) == 2) <= 2

    play(scenario)


@pytest.mark.parametrize("late", [False, True], ids=["from the start", "in the middle"])
def test_what_a_window_cannot_draw_goes_the_plain_way_in_company(late: bool) -> None:
    model = AheadFake()

    async def scenario() -> None:
        async with running(model, slots=4, max_rows=ROWS) as run:
            others: list[asyncio.Task[Answer]] = []

            def come(answer: Answer) -> None:
                if len(answer.ids) > 10 and not others:
                    others.append(asyncio.create_task(collect(run.ask(PROMPTS[2], 12, top_logprobs=2))))
                    seed = SamplingParams(temperature=0.7, seed=3)
                    others.append(asyncio.create_task(collect(run.ask(PROMPTS[4], 5, sampling=seed))))

            if not late:
                come(Answer(ids=[0] * 11))
            answer = await collect(run.ask(PROMPTS[1], 90), after=come)
            assert answer.ids == model.greedy(PROMPTS[1], 90)
            plain, seeded = [await task for task in others]
            assert plain.ids == model.greedy(PROMPTS[2], 12)
            assert len(plain.logprobs) == 12
            assert len(seeded.ids) == 5
            assert run.faults == []

    play(scenario)
    assert max(depths(model)) == 2


def test_a_row_that_is_not_finite_ends_one_answer() -> None:
    model = AheadFake()
    cut = (*PROMPTS[2], *model.greedy(PROMPTS[2], 11))
    model.nan_after = lambda prefix: prefix == cut
    answers = together(model, [(PROMPTS[2], 40, {}), (PROMPTS[3], 40, {})])
    assert answers[0].finished.reason is FinishReason.ERROR
    assert answers[0].finished.error_code == "nonfinite_logits"
    assert answers[0].ids == list(cut[len(PROMPTS[2]) :])
    assert answers[1].ids == model.greedy(PROMPTS[3], 40)


@pytest.mark.parametrize("fault", [{"lost_at": 0}, {"lost_at": 5}, {"fails_after": 4}], ids=str)
def test_a_lost_card_ends_everything(fault: dict[str, int]) -> None:
    model = AheadFake(**fault)

    async def scenario() -> None:
        async with running(model, max_rows=ROWS, draft_max=0) as run:
            answers = await asyncio.gather(*(collect(run.ask(prompt, 24)) for prompt in PROMPTS[:3]))
            for prompt, answer in zip(PROMPTS, answers, strict=False):
                assert answer.finished.fatal
                assert "lost" in (answer.finished.error or "")
                assert answer.ids == model.greedy(prompt, 24)[: len(answer.ids)]
            await asyncio.wait_for(run.fault_seen.wait(), 10)

    play(scenario)


@pytest.mark.parametrize("lie", [1, -1])
def test_a_device_that_kept_other_rows_is_a_fault(lie: int) -> None:
    model = AheadFake(lie=lie)

    async def scenario() -> None:
        async with running(model, max_rows=ROWS) as run:
            answer = await collect(run.ask(PROMPTS[3], 6))
            assert answer.finished.fatal
            assert "their states differ" in (answer.finished.error or "")

    play(scenario)


@pytest.mark.parametrize("drain_s", [None, 0.0], ids=["stop", "drain"])
def test_an_end_waits_for_what_is_on_its_way(drain_s: float | None) -> None:
    model = AheadFake()

    async def scenario() -> None:
        async with running(model, slots=4, max_rows=ROWS) as run:
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


def test_where_a_model_cannot_the_plain_loop_runs() -> None:
    class Plain(AheadFake):
        ahead = False
        step = AheadFake.__mro__[1].step

    model = Plain()

    async def scenario(run: Running) -> None:
        assert (await collect(run.ask(PROMPTS[1], 12))).ids == model.greedy(PROMPTS[1], 12)

    async def whole() -> None:
        async with running(model, replace(SMALL, max_rows=ROWS)) as run:
            await scenario(run)

    play(whole)
    assert model.log == []
    assert model.steps > 0


def test_windows_follow_each_other_without_a_break() -> None:
    """While somebody decodes there are always two on their way when the host waits."""
    model = AheadFake()
    together(model, [(PROMPTS[1], 60, {})])
    waits = [depth for depth, (what, *_) in zip(depths(model), model.log, strict=True) if what == "collect"]
    assert list(itertools.islice(waits, 12)) == [1] * 12
