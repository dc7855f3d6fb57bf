"""The scheduler's parts without an engine: shares, pages, queue, planner, verdicts."""

from __future__ import annotations

import threading
from random import Random

import pytest

from appliance.errors import EngineFault, QueueFullError
from appliance.scheduler import commit
from appliance.scheduler.commit import Drawn, judge
from appliance.scheduler.limits import Limits
from appliance.scheduler.pages import PagePool
from appliance.scheduler.planner import Acceptance, plan_depth
from appliance.scheduler.queue import RequestQueue
from appliance.scheduler.request import FinishReason, GenerationRequest
from appliance.scheduler.session import Session, SessionState
from appliance.scheduler.windows import ChunkTurns, build_turn, fair_shares

LIMITS = Limits(slots=4, prompt_chunk=8, scored_chunk=4, draft_max=4, draft_min_p=0.0, batch_mtp=True, repeat_limit=5)


def session(prompt: int = 3, answer: int = 100, *, stops: tuple[int, ...] = (9,), slot: int = 0) -> Session:
    """A session with a prompt of ones."""
    request = GenerationRequest(id="r", prompt_ids=(1,) * prompt, max_tokens=answer, stop_token_ids=frozenset(stops))
    return Session(request=request, answer_tokens=answer, acceptance=Acceptance(4), slot=slot)


@pytest.mark.parametrize(
    ("wants", "budget", "shares"),
    [
        pytest.param([], 8, [], id="nobody"),
        pytest.param([100], 8, [8], id="one takes all"),
        pytest.param([3], 8, [3], id="one wants less"),
        pytest.param([100, 100], 8, [4, 4], id="two halve it"),
        pytest.param([1, 100], 8, [1, 7], id="the rest of a short one goes to the long one"),
        pytest.param([100, 2, 100], 9, [4, 2, 3], id="odd remainder"),
        pytest.param([100, 100, 100], 2, [1, 1, 0], id="fewer rows than askers"),
    ],
)
def test_prompt_rows_are_shared_fairly(wants: list[int], budget: int, shares: list[int]) -> None:
    assert fair_shares(wants, budget) == shares


def test_every_reader_advances_when_the_chunk_has_a_row_for_each() -> None:
    for readers in range(1, 9):
        for budget in range(readers, 40):
            shares = fair_shares([1000] * readers, budget)
            assert min(shares) >= 1
            assert sum(shares) == budget


def test_pages_are_reserved_whole_and_come_back() -> None:
    pool = PagePool(4, page_tokens=16)
    assert [pool.needed(tokens) for tokens in (1, 16, 17)] == [1, 1, 2]
    first = pool.take(33)
    assert len(first) == 3
    assert pool.fits(16)
    assert not pool.fits(17)
    with pytest.raises(EngineFault, match="1 free KV pages"):
        pool.check_idle()
    pool.give_back(first)
    pool.check_idle()
    pool.give_back(first[:1])
    with pytest.raises(EngineFault, match="4 distinct"):
        pool.check_idle()


def test_queue_takes_as_many_as_have_a_slot_and_the_limit_beyond_spec_12() -> None:
    queue = RequestQueue(2, slots=3)
    waiting = [session() for _ in range(5)]
    for one in waiting:
        queue.put(one)
    with pytest.raises(QueueFullError, match="the limit is 2") as refused:
        queue.put(session())
    assert refused.value.retry_after_s >= 1
    assert [queue.start_next(lambda _: True) for _ in range(3)] == waiting[:3]
    with pytest.raises(QueueFullError):
        queue.put(session())
    queue.ended(served_s=30.0)
    queue.put(session())
    with pytest.raises(QueueFullError) as later:
        queue.put(session())
    assert later.value.retry_after_s > refused.value.retry_after_s


def test_nobody_overtakes_a_request_that_does_not_fit_yet_mem_06() -> None:
    queue = RequestQueue(8, slots=1)
    long, short = session(50), session(1)
    queue.put(long)
    queue.put(short)
    assert queue.start_next(lambda one: one is short) is None
    assert queue.start_next(lambda one: one is long) is long


def test_a_wake_before_the_wait_is_not_lost() -> None:
    queue = RequestQueue(8, slots=1)
    queue.wake()
    waiter = threading.Thread(target=queue.wait)
    waiter.start()
    waiter.join(10)
    assert not waiter.is_alive()


@pytest.mark.parametrize(
    ("drafts", "drawn", "answer", "visible", "accepted", "reason"),
    [
        pytest.param((), [4], 9, (4,), 0, None, id="no drafts"),
        pytest.param((4, 5), [4, 5, 6], 9, (4, 5, 6), 2, None, id="all right"),
        pytest.param((4, 5), [4, 7, 6], 9, (4, 7), 1, None, id="second wrong"),
        pytest.param((4, 5), [7, 5, 6], 9, (7,), 0, None, id="first wrong"),
        pytest.param(
            (4, 9, 6, 7, 8), [4, 9, 6, 7, 8, 3], 5, (4,), 2, "stop", id="SAMP-03 end of turn before the limit"
        ),
        pytest.param(
            (4, 5, 6, 9), [4, 5, 6, 9, 3], 3, (4, 5, 6), 3, "length", id="SAMP-03 limit before the end of turn"
        ),
        pytest.param((4, 5, 9), [4, 5, 9, 3], 3, (4, 5), 3, "stop", id="SAMP-03 stop and limit on one token"),
        pytest.param((9, 5), [9, 5, 6], 9, (), 1, "stop", id="SAMP-03 stop at the first token"),
        pytest.param((4,), [9, 6], 9, (), 0, "stop", id="SAMP-03 stop instead of a draft"),
        pytest.param((4, 5), [4, 5, 6], 1, (4,), 1, "length", id="one token left"),
    ],
)
def test_verdict(
    drafts: tuple[int, ...], drawn: list[int], answer: int, visible: tuple[int, ...], accepted: int, reason: str | None
) -> None:
    one = session(answer=answer)
    one.drafts = drafts
    verdict = judge(one, Drawn(drawn, [True] * len(drawn)), repeat_limit=0)
    assert (verdict.visible, verdict.accepted, verdict.reason) == (visible, accepted, reason)
    assert len(one.output) == len(visible) + (reason == "stop"), "usage counts what was kept, the stop token included"


def test_a_row_that_is_not_a_number_ends_the_answer_before_it_tool_10() -> None:
    one = session()
    one.drafts = (4, 5)
    verdict = judge(one, Drawn([4, 5, 6], [True, False, True]), repeat_limit=0)
    assert (verdict.visible, verdict.reason) == ((4,), FinishReason.ERROR)
    assert verdict.error is not None
    assert verdict.error[1] == "nonfinite_logits"


def test_a_bad_row_behind_a_wrong_draft_does_not_matter() -> None:
    one = session()
    one.drafts = (4, 5)
    verdict = judge(one, Drawn([7, 5, 6], [True, False, False]), repeat_limit=0)
    assert (verdict.visible, verdict.reason) == ((7,), None)


@pytest.mark.parametrize(
    ("stops", "limit", "count"),
    [
        pytest.param((9,), 5, 5, id="TOOL-10 stopped after the run"),
        pytest.param((), 5, None, id="never with ignore_eos"),
        pytest.param((9,), 0, None, id="switched off"),
    ],
)
def test_one_token_for_ever(stops: tuple[int, ...], limit: int, count: int | None) -> None:
    one = session(stops=stops)
    verdicts = [judge(one, Drawn([3], [True]), repeat_limit=limit) for _ in range(20 if count is None else count)]
    assert [verdict.reason for verdict in verdicts[:-1]] == [None] * (len(verdicts) - 1)
    if count is not None:
        assert verdicts[-1].reason is FinishReason.ERROR
        assert verdicts[-1].error is not None
        assert verdicts[-1].error[1] == "degenerate_output"
    else:
        assert verdicts[-1].reason is None


def test_a_run_is_counted_across_windows_and_broken_by_another_token() -> None:
    one = session()
    for token in (3, 3, 3, 3, 4, 3, 3, 3, 3):
        assert judge(one, Drawn([token], [True]), repeat_limit=5).reason is None
    assert judge(one, Drawn([3], [True]), repeat_limit=5).reason is FinishReason.ERROR


def test_shares_by_depth_are_measured_and_fall_with_depth() -> None:
    acceptance = Acceptance(4)
    assert acceptance.shares() == [1.0] * 4
    assert not acceptance.measured
    for _ in range(400):
        acceptance.record(3, 2)
    assert acceptance.measured
    assert acceptance.offered == [400, 400, 400, 0]
    assert acceptance.accepted == [400, 400, 0, 0]
    first, second, third, fourth = acceptance.shares()
    assert first == second == pytest.approx(1.0)
    assert fourth == third < 0.01, "a depth that was not offered stands no more often than the one before"
    for _ in range(100):
        acceptance.record(4, 4)
    assert acceptance.shares()[3] > 0.7, "texts change character"


@pytest.mark.parametrize(
    ("room", "decoding", "batch_mtp", "depth"),
    [
        pytest.param(100, 1, True, 4, id="alone"),
        pytest.param(100, 8, True, 4, id="SPEC-01 the same with eight"),
        pytest.param(100, 1, False, 4, id="batch_mtp off, alone"),
        pytest.param(100, 2, False, 0, id="batch_mtp off, two"),
        pytest.param(3, 1, True, 2, id="no more than can be used"),
        pytest.param(1, 1, True, 0, id="last token"),
    ],
)
def test_planned_depth(room: int, decoding: int, batch_mtp: bool, depth: int) -> None:
    limits = Limits(
        slots=8, prompt_chunk=8, scored_chunk=8, draft_max=4, draft_min_p=0.0, batch_mtp=batch_mtp, repeat_limit=0
    )
    assert plan_depth(Acceptance(4), room=room, limits=limits, decoding=decoding) == depth


def test_a_window_has_every_decoder_with_its_drafts_and_one_chunk_of_reading_spec_10() -> None:
    decoders = [session(slot=slot) for slot in (0, 1)]
    for one in decoders:
        one.state, one.read, one.output, one.drafts = SessionState.DECODING, 3, [5, 6], (7, 8)
    long, short = session(1000, slot=2), session(3, slot=3)
    turn = build_turn(decoders, [long, short], limits=LIMITS, chunks=ChunkTurns())
    assert turn is not None
    shapes = [
        (span.slot, span.start, len(span.tokens), span.draft_count, span.logit_rows) for span in turn.window.spans
    ]
    assert shapes == [(0, 4, 3, 2, 3), (1, 4, 3, 2, 3), (2, 0, 5, 0, 0), (3, 0, 3, 0, 1)]
    assert turn.decoding == 2
    assert build_turn([], [], limits=LIMITS, chunks=ChunkTurns()) is None


def test_prompts_to_score_share_the_rows_that_yield_logits() -> None:
    scored = GenerationRequest(id="s", prompt_ids=(1,) * 50, max_tokens=0, prompt_logprobs=1)
    readers = [Session(request=scored, answer_tokens=0, acceptance=Acceptance(4), slot=slot) for slot in range(2)]
    turn = build_turn([], readers, limits=LIMITS, chunks=ChunkTurns())
    assert turn is not None
    assert [(len(span.tokens), span.logit_rows) for span in turn.window.spans] == [(2, 2), (2, 2)]


def test_the_quick_verdict_is_the_slow_one() -> None:
    """Whatever is drawn, drafted, allowed and left: `judge` is the token-by-token walk."""
    random = Random(5)
    ends = set()
    for _ in range(3000):
        drafts = tuple(random.randrange(4) for _ in range(random.randrange(5)))
        drawn = [random.choice((*drafts[row : row + 1], random.randrange(4))) for row in range(len(drafts) + 1)]
        finite = [random.random() < 0.95 for _ in drawn]
        stops, answer, limit = random.choice(((), (3,))), random.randrange(4, 12), random.choice((0, 3))
        found = []
        for way in (judge, commit._token_by_token):
            one = session(answer=answer, stops=stops)
            one.output, one.run, one.drafts = [2, 2, 1], 1, drafts
            found.append((way(one, Drawn(drawn, finite), repeat_limit=limit), one.output, one.run))
        assert found[0] == found[1]
        ends.add(found[0][0].reason)
    assert ends == {None, FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR}
