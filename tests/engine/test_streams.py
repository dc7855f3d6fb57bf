"""Conversations side by side on a model that checks its caller: joins, leaves, cancels, limits, drafts."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable

import pytest

from appliance.engine.handle import FinishReason, RequestStream
from appliance.errors import NotReadyError, RequestError
from tests.builders.fake_model import FakeModel, always, mixed, never
from tests.engine.harness import GREEDY, PROMPTS, SMALL, Answer, Gate, Running, collect, play, running, until

PATTERNS = [
    pytest.param(None, id="no drafts"),
    pytest.param(always, id="all right"),
    pytest.param(mixed, id="some right"),
    pytest.param(never, id="none right"),
]


async def collect_first(stream: RequestStream) -> Answer:
    """Closes a stream at its first token."""
    return await collect(stream, after=lambda answer: stream.cancel() if answer.ids else None)


def refuses(run: Running) -> bool:
    """Whether the engine takes no more requests: then it does not even look whether they are right."""
    try:
        run.ask((), 5)
    except NotReadyError:
        return True
    except RequestError:
        return False
    raise AssertionError("an empty prompt was accepted")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_answers_are_those_of_the_conversation_alone(pattern: Callable[[int, int, int], bool] | None) -> None:
    """SPEC-01, SPEC-02, SPEC-05: eight prompts of different lengths on four slots, the model checks every span."""
    model = FakeModel(draft_right=pattern)

    async def scenario() -> None:
        async with running(model) as run:
            answers = await asyncio.gather(*(collect(run.ask(prompt, 40)) for prompt in PROMPTS))
            for prompt, answer in zip(PROMPTS, answers, strict=True):
                assert answer.ids == model.greedy(prompt, 40)
                assert answer.finished.reason is FinishReason.LENGTH
                assert answer.finished.usage.completion_tokens == 40
            status = run.status()
            assert status.cache.pages_used == 0
            assert {slot.state for slot in status.slots} == {"free"}
            assert status.requests_finished["length"] == 8

    play(scenario)


@pytest.mark.parametrize("users", [1, 2, 4])
def test_every_slot_drafts_with_any_number_of_users(users: int) -> None:
    """SPEC-01, SPEC-02: acceptance by depth is the same for each, alone or together."""
    model = FakeModel(draft_right=lambda slot, depth, position: depth < 2)

    async def scenario() -> None:
        async with running(model) as run:
            answers = await asyncio.gather(*(collect(run.ask(prompt, 46)) for prompt in PROMPTS[:users]))
            # One token from the prompt, then windows of three rows that stand: 1 + 15 * 3.
            for answer in answers:
                assert answer.bursts == [1, *[3] * 15]
                assert answer.finished.usage.drafts_accepted == 30
            drafts = run.status().drafts
            assert drafts.accepted == (15 * users, 15 * users, 0)
            assert drafts.offered[:2] == (15 * users, 15 * users)

    play(scenario)


def test_batch_mtp_false_drafts_only_alone() -> None:
    model = FakeModel(draft_right=always)

    async def scenario() -> None:
        async with running(model, batch_mtp=False) as run:
            alone = await collect(run.ask(PROMPTS[0], 20))
            assert alone.finished.usage.drafts_accepted > 0
            model.windows.clear()
            await asyncio.gather(*(collect(run.ask(PROMPTS[0], 20)) for _ in range(2)))

    play(scenario)
    together = [window for window in model.windows if len(window.spans) == 2]
    assert together
    assert all(span.draft_count == 0 for window in together for span in window.spans)


def test_join_and_leave_do_not_change_the_others() -> None:
    """SPEC-04: A alone; B joins at A's token 50; C at 80; A ends at 120; B is cancelled at 150 of its own."""
    model = FakeModel(draft_right=mixed)
    a, b, c = PROMPTS[1], PROMPTS[4], PROMPTS[6]

    async def scenario() -> None:
        async with running(model) as run:
            tasks: dict[str, asyncio.Task[Answer]] = {}

            def follow_a(answer: Answer) -> None:
                if len(answer.ids) >= 50 and "b" not in tasks:
                    stream = run.ask(b, 200)

                    def follow_b(own: Answer) -> None:
                        if len(own.ids) >= 150:
                            stream.cancel()

                    tasks["b"] = asyncio.create_task(collect(stream, after=follow_b))
                if len(answer.ids) >= 80 and "c" not in tasks:
                    tasks["c"] = asyncio.create_task(collect(run.ask(c, 180)))

            first = await collect(run.ask(a, 120), after=follow_a)
            second, third = await tasks["b"], await tasks["c"]
            assert first.ids == model.greedy(a, 120)
            assert third.ids == model.greedy(c, 180)
            assert second.ids == model.greedy(b, len(second.ids))
            assert second.finished.reason is FinishReason.CANCELLED or len(second.ids) == 200

    play(scenario)


def test_a_closed_stream_leaves_its_slot_clean() -> None:
    """STR-12, STR-01: 200 times a stream is closed early and its slot reused at once, beside another stream."""
    model = FakeModel(draft_right=mixed)

    async def scenario() -> None:
        async with running(model, slots=2) as run:
            for number in range(200):
                left, kept = PROMPTS[number % 8], PROMPTS[(number + 3) % 8]
                stream = run.ask(left, 200)
                other = asyncio.create_task(collect(run.ask(kept, 12)))
                closed = await collect_first(stream)
                again = await collect(run.ask(kept, 9))
                assert closed.ids == model.greedy(left, len(closed.ids))
                assert again.ids == model.greedy(kept, 9)
                assert (await other).ids == model.greedy(kept, 12)
            assert run.status().cache.pages_used == 0

    play(scenario)


@pytest.mark.parametrize("state", ["queued", "reading", "decoding"])
def test_cancel_frees_at_the_next_window(state: str) -> None:
    """STR-01, STR-02, STR-04: in every state."""
    model = FakeModel()
    gate = Gate(model, when=lambda window: window.spans[0].start >= (9 if state == "decoding" else 0))

    async def scenario() -> None:
        async with running(model, slots=1) as run:
            gate.close()
            first = run.ask(PROMPTS[1] if state != "reading" else (1,) * 200, 50)
            await gate.reached()
            victim = run.ask(PROMPTS[2], 50) if state == "queued" else first
            victim.cancel()
            windows = len(model.windows)
            if state == "queued":
                gate.open()
                assert (await collect(victim)).finished.reason is FinishReason.CANCELLED
                assert (await collect(first)).ids == model.greedy(PROMPTS[1], 50)
            else:
                gate.open()
                ended = await collect(victim)
                assert ended.finished.reason is FinishReason.CANCELLED
                assert len(model.windows) <= windows + 1, "reading and decoding stop at the next window"
            victim.cancel()
            assert run.status().slots[0].state == "free"
            assert (await collect(run.ask(PROMPTS[2], 5))).ids == model.greedy(PROMPTS[2], 5)

    play(scenario)


def test_a_long_prompt_does_not_freeze_the_others() -> None:
    """SPEC-10: while 240 tokens are read, every window still has the three decoders, and at most one chunk."""
    model = FakeModel(draft_right=always)
    long = tuple(number % 61 for number in range(240))

    async def scenario() -> None:
        async with running(model) as run:
            others = [run.ask(prompt, 150) for prompt in PROMPTS[:3]]
            started: list[asyncio.Task[Answer]] = []

            def follow(answer: Answer) -> None:
                if len(answer.ids) >= 10 and not started:
                    started.append(asyncio.create_task(collect(run.ask(long, 8))))

            answers = await asyncio.gather(*(collect(stream, after=follow) for stream in others))
            for prompt, answer in zip(PROMPTS[:3], answers, strict=True):
                assert answer.ids == model.greedy(prompt, 150)
            assert (await started[0]).ids == model.greedy(long, 8)

    play(scenario)
    reading = [window for window in model.windows if len(window.spans) == 4 and len(window.spans[3].tokens) > 4]
    assert len(reading) >= 10
    for window in reading:
        assert [span.draft_count > 0 for span in window.spans] == [True, True, True, False]
        assert len(window.spans[3].tokens) <= SMALL.prompt_chunk


@pytest.mark.parametrize("seed", range(6))
def test_a_random_crowd(seed: int) -> None:
    """MEM-10, SPEC-04: 150 conversations come, end, are cut, wait for pages; nothing is mixed up or left over."""
    chance = random.Random(seed)
    model = FakeModel(draft_right=mixed)

    async def one(run: Running) -> None:
        prompt = tuple(chance.randrange(61) for _ in range(chance.choice((1, 2, 5, 15, 16, 17, 60))))
        wanted = chance.choice((1, 2, 7, 30))
        cut = chance.choice((None, None, 0, 1, 5))
        stream = run.ask(prompt, wanted, sampling=GREEDY)
        if cut == 0:
            stream.cancel()
        answer = await collect(
            stream, after=lambda found: stream.cancel() if cut is not None and len(found.ids) >= cut else None
        )
        assert answer.ids == model.greedy(prompt, len(answer.ids))
        assert answer.finished.reason is FinishReason.LENGTH or cut is not None
        assert len(answer.ids) == wanted or cut is not None

    async def user(run: Running) -> None:
        for _ in range(15):
            await one(run)

    async def scenario() -> None:
        async with running(model, pages=64, draft_max=chance.choice((0, 1, 4))) as run:
            await asyncio.gather(*(user(run) for _ in range(10)))
            status = run.status()
            assert status.cache.pages_used == 0
            assert sum(status.requests_finished.values()) == 150
            assert {slot.state for slot in status.slots} == {"free"}

    play(scenario)
    for thread in threading.enumerate():
        if thread.name.startswith("engine"):
            thread.join(10)
            assert not thread.is_alive()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_stop_inside_a_window_ends_the_text_before_it(pattern: Callable[[int, int, int], bool] | None) -> None:
    """SAMP-03: the stop is the third token, max_tokens the fifth, both inside one window of drafts."""
    model = FakeModel(draft_right=pattern)
    model.script = lambda prefix: {2: 11, 3: 12, 4: 60, 5: 13, 6: 14}.get(len(prefix))

    async def scenario() -> None:
        async with running(model) as run:
            answer = await collect(run.ask((1, 2), 5, stop_token_ids=frozenset({60})))
            assert answer.ids == [11, 12]
            assert answer.finished.reason is FinishReason.STOP
            assert answer.finished.usage.completion_tokens == 3
            ignored = await collect(run.ask((1, 2), 5))
            assert ignored.ids == [11, 12, 60, 13, 14]
            assert ignored.finished.reason is FinishReason.LENGTH

    play(scenario)


def test_drain_ends_waiting_now_and_running_by_the_deadline() -> None:
    """CTR-08: no new requests; one stream finishes in time, with deadline 0 one is cut."""
    model = FakeModel()
    gate = Gate(model)

    async def scenario(deadline_s: float) -> None:
        async with running(model, slots=1) as run:
            gate.close()
            streaming, waiting = run.ask(PROMPTS[0], 30), run.ask(PROMPTS[1], 30)
            await gate.reached()
            run.engine.drain(deadline_s)
            with pytest.raises(NotReadyError):
                run.ask(PROMPTS[2], 5)
            gate.open()
            assert (await collect(waiting)).finished.reason is FinishReason.CANCELLED
            answer = await collect(streaming)
            expected = FinishReason.LENGTH if deadline_s else FinishReason.CANCELLED
            assert answer.finished.reason is expected
            assert answer.ids == model.greedy(PROMPTS[0], len(answer.ids))

    for deadline_s in (60.0, 0.0):
        play(lambda: scenario(deadline_s))  # noqa: B023  played before the next turn of the loop


def test_stop_ends_every_stream_and_refuses_later_requests() -> None:
    model = FakeModel()
    gate = Gate(model)

    async def scenario() -> None:
        async with running(model, slots=1) as run:
            gate.close()
            streams = [run.ask(PROMPTS[0], 200), run.ask(PROMPTS[1], 200)]
            await gate.reached()
            stopping = asyncio.create_task(asyncio.to_thread(run.engine.stop))
            await until(lambda: refuses(run))
            gate.open()
            for answer in await asyncio.gather(*map(collect, streams)):
                assert answer.finished.reason is FinishReason.CANCELLED
            await stopping
            assert refuses(run)

    play(scenario)
