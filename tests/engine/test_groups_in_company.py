"""Groups of conversations on stages: the cases that broke other servers, on a model that checks every rule."""

from __future__ import annotations

import asyncio

import pytest

from appliance.errors import QueueFullError, RequestError
from appliance.model.window import Window
from appliance.scheduler.request import FinishReason
from tests.builders.stepping_model import ROWS, StagedFake
from tests.engine.harness import PROMPTS, Answer, Gate, Running, collect, play, running, until

LONG = tuple(range(60)) * 3


def right_at_every_place(slot: int, depth: int, position: int) -> bool:
    """Two drafts of three stand, whatever the slot."""
    return depth < 2


@pytest.mark.parametrize("groups", [2, 3, 4])
@pytest.mark.parametrize("users", [1, 2, 4, 8])
def test_every_slot_drafts_in_every_group_spec_01(users: int, groups: int) -> None:
    """SPEC-01: with one user and with eight, each conversation's drafts are offered and accepted."""
    model = StagedFake()

    async def scenario() -> None:
        async with running(model, slots=8, groups=groups, max_rows=ROWS) as run:
            answers = await asyncio.gather(*(collect(run.ask(prompt, 60)) for prompt in PROMPTS[:users]))
            for prompt, answer in zip(PROMPTS, answers, strict=False):
                assert answer.ids == model.greedy(prompt, 60)
                assert answer.finished.usage.drafts_accepted > 0
            status = run.status()
            assert status.drafts.offered[0] > 0
            assert {cost.conversations for cost in status.costs} <= set(range(1, users + 1))
            assert sum(cost.windows for cost in status.costs) > 0

    play(scenario)


def test_plans_of_both_groups_are_told_while_they_decode() -> None:
    model, seen = StagedFake(), []

    async def scenario() -> None:
        async with running(model, slots=4, groups=2, max_rows=ROWS) as run:

            def look(answer: Answer) -> None:
                seen.append(run.status().plans)

            await asyncio.gather(*(collect(run.ask(prompt, 80), after=look) for prompt in PROMPTS[:4]))

    play(scenario)
    both = [plans for plans in seen if len(plans) == 2]
    assert both
    for plan in both[-1]:
        assert plan.rows == len(plan.depths) + sum(plan.depths)
        assert plan.steps == max(plan.depths)
        assert plan.why


def test_the_same_prompt_is_drafted_alike_in_every_slot_spec_02() -> None:
    """SPEC-02: alone in any slot and with all slots busy, in two groups: the same counts."""
    model, found = StagedFake(), []
    model.draft_right = right_at_every_place

    async def scenario() -> None:
        async with running(model, slots=4, groups=2, max_rows=ROWS) as run:
            for company in (1, 1, 4, 3):
                answers = await asyncio.gather(*(collect(run.ask(PROMPTS[3], 40)) for _ in range(company)))
                for answer in answers:
                    assert answer.ids == model.greedy(PROMPTS[3], 40)
                    usage = answer.finished.usage
                    found.append(usage.drafts_accepted / usage.drafts_offered)

    play(scenario)
    # Windows of several have fewer rows for each, so shorter drafts, of which more stand; never fewer.
    assert min(found) >= 0.6


def test_joins_leaves_and_a_cancel_in_groups_spec_04() -> None:
    """SPEC-04: A alone, B joins at A's token 50, C at 80, A ends at 120, B is cancelled at its own 150th."""
    model = StagedFake()
    joined: dict[str, asyncio.Task[Answer]] = {}

    async def scenario() -> None:
        async with running(model, slots=4, groups=2, max_rows=ROWS) as run:

            async def cancelled() -> Answer:
                stream = run.ask(PROMPTS[2], 230)
                return await collect(stream, after=lambda answer: stream.cancel() if len(answer.ids) >= 150 else None)

            def follow(answer: Answer) -> None:
                if len(answer.ids) >= 50 and "B" not in joined:
                    joined["B"] = asyncio.create_task(cancelled())
                if len(answer.ids) >= 80 and "C" not in joined:
                    joined["C"] = asyncio.create_task(collect(run.ask(PROMPTS[5], 200)))

            first = await collect(run.ask(PROMPTS[1], 120), after=follow)
            assert first.ids == model.greedy(PROMPTS[1], 120)
            second, third = await joined["B"], await joined["C"]
            assert second.finished.reason is FinishReason.CANCELLED
            assert second.ids == model.greedy(PROMPTS[2], 230)[: len(second.ids)]
            assert third.ids == model.greedy(PROMPTS[5], 200)
            assert run.status().cache.pages_used == 0

    play(scenario)


def test_a_long_prompt_stops_nobody_spec_10() -> None:
    """SPEC-10: three decode while a long prompt is read: none waits for more than a chunk a stage, and it is read."""
    model = StagedFake()
    since: dict[int, int] = {}
    longest = 0

    def count(window: Window) -> None:
        nonlocal longest
        chunk = len(window.spans) == 1 and len(window.spans[0].tokens) > ROWS
        for slot in since:
            since[slot] += chunk
            longest = max(longest, since[slot])
        for span in window.spans:
            if span.draft_count or len(span.tokens) == 1:
                since[span.slot] = 0

    async def scenario() -> None:
        async with running(model, slots=4, groups=2, max_rows=ROWS, span_rows=4, chunk_rows=16) as run:
            model.before_forward = count
            others = [asyncio.create_task(collect(run.ask(prompt, 100))) for prompt in PROMPTS[:3]]
            await until(lambda: run.status().timings.generated_tokens > 30)
            long = await collect(run.ask(LONG[:150], 4))
            assert long.ids == model.greedy(LONG[:150], 4)
            for prompt, task in zip(PROMPTS, others, strict=False):
                assert (await task).ids == model.greedy(prompt, 100)

    play(scenario)
    assert longest <= model.reads


def test_more_users_than_slots_in_groups_spec_12() -> None:
    """SPEC-12: four slots in two groups, eight wait, the next is refused at once; all others are answered."""
    model = StagedFake()
    gate = Gate(model)

    async def scenario() -> None:
        async with running(model, slots=4, groups=2, max_rows=ROWS, queue_limit=8) as run:
            gate.close()
            streams = [run.ask(PROMPTS[number % 8], 12) for number in range(12)]
            with pytest.raises(QueueFullError):
                run.ask(PROMPTS[0], 12)
            gate.open()
            answers = await asyncio.gather(*map(collect, streams))
            for number, answer in enumerate(answers):
                assert answer.ids == model.greedy(PROMPTS[number % 8], 12)

    play(scenario)


def test_a_bad_request_between_two_groups_spec_13() -> None:
    """SPEC-13: it fails at once, those in both groups and the one that waits go on."""
    model = StagedFake()

    async def scenario() -> None:
        async with running(model, slots=2, groups=2, max_rows=ROWS) as run:
            streams = [run.ask(prompt, 30) for prompt in PROMPTS[:3]]
            with pytest.raises(RequestError, match="token id 61"):
                run.ask((1, 61), 5)
            for prompt, stream in zip(PROMPTS, streams, strict=False):
                assert (await collect(stream)).ids == model.greedy(prompt, 30)
            assert run.faults == []

    play(scenario)


async def windows_after(run: Running, model: StagedFake, *, company: int) -> list[Window]:
    """A conversation's windows once those beside it have left."""
    gate = Gate(model)
    gate.close()
    mine = asyncio.create_task(collect(run.ask(PROMPTS[1], 150)))
    others = [asyncio.create_task(collect(run.ask(prompt, 20))) for prompt in PROMPTS[2 : 2 + company]]
    gate.open()
    await asyncio.gather(*others)
    seen = len(model.windows)
    assert (await mine).ids == model.greedy(PROMPTS[1], 150)
    return [window for window in model.windows[seen + 2 :] if window.spans[0].start > len(PROMPTS[1]) + 60]


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("company", [1, 3])
def test_alone_again_is_as_never_in_company_spec_14(company: int, groups: int) -> None:
    """SPEC-14: the survivor has its windows to itself, one on its way at a time; see also test_drafting.py."""
    model, found = StagedFake(), []

    async def scenario() -> None:
        async with running(model, slots=4, groups=groups, max_rows=ROWS) as run:
            found.extend(await windows_after(run, model, company=company))

    play(scenario)
    assert len(found) > 5
    assert {len(window.spans) for window in found} == {1}
    assert max(len(window.spans[0].tokens) for window in found) > 1, "drafts are still offered"
    flying = 0
    for what, _ in model.log[-10:]:
        flying += 1 if what == "submit" else -1
        assert flying <= 1


def test_a_card_that_disappears_is_one_clear_line() -> None:
    """A stage's card is lost while both groups are on their way: streams end with the line, and it is told once."""

    class Gone(StagedFake):
        def collect(self, ticket):  # type: ignore[no-untyped-def]
            if len(self.log) > 20:
                raise RuntimeError("CUDA error: the GPU is lost\nCompile with `TORCH_USE_CUDA_DSA`\nand more")
            return super().collect(ticket)

    model = Gone()

    async def scenario() -> None:
        async with running(model, slots=4, groups=2, max_rows=ROWS) as run:
            answers = await asyncio.gather(*(collect(run.ask(prompt, 200)) for prompt in PROMPTS[:4]))
            for answer in answers:
                assert answer.finished.fatal
                assert "a card was lost: CUDA error: the GPU is lost" in (answer.finished.error or "")
                assert "\n" not in (answer.finished.error or "")
            await asyncio.wait_for(run.fault_seen.wait(), 10)
            assert len(run.faults) == 1

    play(scenario)
