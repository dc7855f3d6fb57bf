"""Long prompts in turns of their own: how long those are, whose they are, and that nobody waits for more than one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.scheduler.limits import SHARED_CHUNK_ROWS, Limits
from appliance.scheduler.planner import Acceptance
from appliance.scheduler.request import GenerationRequest
from appliance.scheduler.session import Session, SessionState
from appliance.scheduler.windows import ChunkTurns, Turn, build_turn

LIMITS = Limits(
    slots=4,
    prompt_chunk=256,
    scored_chunk=4,
    draft_max=4,
    draft_min_p=0.0,
    batch_mtp=True,
    repeat_limit=5,
    window_rows=40,
    span_rows=13,
    chunk_rows=2048,
)


def reader(prompt: int, *, slot: int, scored: bool = False) -> Session:
    request = GenerationRequest(id="r", prompt_ids=(1,) * prompt, max_tokens=9, prompt_logprobs=1 if scored else None)
    return Session(request=request, answer_tokens=9, acceptance=Acceptance(4), slot=slot, state=SessionState.READING)


def decoder(slot: int) -> Session:
    one = reader(3, slot=slot)
    one.state, one.read, one.output = SessionState.DECODING, 3, [5, 6]
    return one


def rows_of(turn: Turn) -> list[tuple[int, int]]:
    """(slot, rows) of each span."""
    return [(span.slot, len(span.tokens)) for span in turn.window.spans]


def play(sessions: list[Session], limits: Limits, turns: int) -> list[list[tuple[int, int]]]:
    """So many turns as a scheduler composes them, with every prompt read as far as its turns go."""
    chunks, found = ChunkTurns(), []
    for _ in range(turns):
        decoding = [one for one in sessions if one.state is SessionState.DECODING]
        reading = [one for one in sessions if one.state is SessionState.READING and one.read < one.prompt_tokens]
        turn = build_turn(decoding, reading, limits=limits, chunks=chunks)
        if turn is None:
            break
        for span, session in zip(turn.window.spans, turn.sessions, strict=True):
            session.read += len(span.tokens) if session.state is SessionState.READING else 0
        found.append(rows_of(turn))
    return found


@pytest.mark.parametrize(
    ("prompts", "decoders", "wanted"),
    [
        pytest.param([5000], 0, [[(0, 2048)], [(0, 2048)], [(0, 904)]], id="alone in long turns"),
        pytest.param([13], 0, [[(0, 13)]], id="what fits a window is read in one"),
        pytest.param([14], 0, [[(0, 14)]], id="one row more is a turn of its own"),
        pytest.param([2050], 0, [[(0, 2048)], [(0, 2)]], id="a short rest goes into a window"),
        pytest.param(
            [1030], 1, [[(0, 512)], [(9, 1)], [(0, 512)], [(9, 1), (0, 6)]], id="in turn with those who decode"
        ),
        pytest.param([3000, 3000], 0, [[(0, 2048)], [(1, 2048)], [(0, 952)], [(1, 952)]], id="two long ones in turn"),
        pytest.param(
            [900, 900, 5],
            1,
            [[(0, 512)], [(9, 1), (2, 5)], [(1, 512)], [(9, 1)], [(0, 388)], [(9, 1)], [(1, 388)], [(9, 1)]],
            id="two long ones, a short one and a decoder",
        ),
    ],
)
def test_turns(prompts: list[int], decoders: int, wanted: list[list[tuple[int, int]]]) -> None:
    sessions = [reader(prompt, slot=slot) for slot, prompt in enumerate(prompts)]
    sessions += [decoder(9 - number) for number in range(decoders)]
    assert play(sessions, LIMITS, len(wanted)) == wanted


@pytest.mark.parametrize(
    "limits",
    [pytest.param(replace(LIMITS, chunk_rows=None), id="no such turns"), pytest.param(LIMITS, id="scored prompts")],
)
def test_prompts_that_share_windows(limits: Limits) -> None:
    sessions = [reader(100, slot=0, scored=limits.chunk_rows is not None), decoder(1)]
    assert play(sessions, limits, 2) == [[(1, 1), (0, min(13, 4 if limits.chunk_rows else 13))]] * 2


@pytest.mark.parametrize("chunk_rows", [100, 4096], ids=str)
def test_a_turn_that_others_wait_for_is_short(chunk_rows: int) -> None:
    limits = replace(LIMITS, chunk_rows=chunk_rows)
    assert limits.chunk_of(9000, shared=True) == min(chunk_rows, SHARED_CHUNK_ROWS)
    assert limits.chunk_of(9000, shared=False) == chunk_rows
    assert limits.chunk_of(13, shared=False) == 0


def test_only_the_last_row_of_a_prompt_yields_logits() -> None:
    long = reader(20, slot=0)
    turn = build_turn([], [long], limits=replace(LIMITS, chunk_rows=16), chunks=ChunkTurns())
    assert turn is not None
    assert [(span.logits_from, turn.decoding) for span in turn.window.spans] == [(16, 0)]
    long.read = 4
    turn = build_turn([], [long], limits=replace(LIMITS, chunk_rows=16), chunks=ChunkTurns())
    assert turn is not None
    assert [(span.start, span.logits_from) for span in turn.window.spans] == [(4, 15)]
