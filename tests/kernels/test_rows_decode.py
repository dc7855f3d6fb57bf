"""Rows made on the device: plans, what the device knows, drafts that are right and wrong, chains that end."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch

from kernels.rows import (
    Chain,
    DrawRows,
    SlotState,
    SpanPlan,
    Verdict,
    accept,
    draft_step,
    empty_rows,
    fill,
    pack_plan,
    plan_size,
)
from kernels.window import WindowRows
from tests.kernels.windows import Span, window_rows

SLOTS, DRAFTS, VOCABULARY = 4, 3, 50


class Window:
    """All tables of one bucket, filled from a plan."""

    def __init__(self, state: SlotState, plan: list[SpanPlan], *, bucket: int, poison: int = -9) -> None:
        device = state.length.device
        self.rows = empty_rows(bucket, device=device)
        self.draw = DrawRows.of_window(self.rows)
        self.axis = torch.full((3, bucket), poison, dtype=torch.int32, device=device)
        self.forced = torch.full((bucket,), poison, dtype=torch.int32, device=device)
        buffer = np.full(plan_size(bucket), poison, dtype=np.int32)
        pack_plan(plan, bucket=bucket, out=buffer)
        fill(
            torch.from_numpy(buffer).to(device),
            state,
            out=self.rows,
            draw=self.draw,
            axis_position=self.axis,
            forced=self.forced,
        )


def make_state(device: str) -> SlotState:
    """Slot 0 has two drafts, slot 1 none, slot 2 three and a picture before it."""
    state = SlotState.empty(slots=SLOTS, draft_max=DRAFTS, device=device)
    state.length[:4] = torch.tensor([7, 12, 30, 0])
    state.next_token[:4] = torch.tensor([40, 41, 42, 43])
    state.drafts[0, :2] = torch.tensor([5, 6])
    state.drafts[2] = torch.tensor([8, 8, 9])
    state.draft_count[:4] = torch.tensor([2, 0, 3, 0])
    state.axis_offset[2] = -11
    state.draft_limit.fill_(DRAFTS)
    state.draft_least.fill_(0.5)
    state.capacity.fill_(64)
    return state


def assert_rows(found: WindowRows, wanted: WindowRows) -> None:
    for field in fields(WindowRows):
        assert getattr(found, field.name).tolist() == getattr(wanted, field.name).tolist(), field.name


def test_a_window_of_all_kinds_of_spans(device: str) -> None:
    """Fewer drafts than asked for, drafts cut by the plan, and the middle of a prompt."""
    state = make_state(device)
    plan = [
        SpanPlan(slot=2, rows=3),
        SpanPlan(slot=0, rows=4),
        SpanPlan(slot=3, rows=2, tokens=(21, 22), start=0, certain=2, next_token=23),
        SpanPlan(slot=1, rows=1),
    ]
    window = Window(state, plan, bucket=12)
    wanted = [
        Span(2, 30, 3, 1, (42, 8, 8)),
        Span(0, 7, 3, 1, (40, 5, 6)),
        Span(3, 0, 2, 2, (21, 22)),
        Span(1, 12, 1, 1, (41,)),
    ]
    assert_rows(window.rows, window_rows(wanted, bucket=12, slots=SLOTS, device=device))
    assert window.forced[:4].tolist() == [-1, -1, 23, -1]
    assert window.draw.wanted.tolist() == [1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0]
    assert window.draw.position[:9].tolist() == [31, 32, 33, 8, 9, 10, 1, 2, 13]
    recent = [
        window.rows.tokens[first : first + count].tolist()
        for first, count in zip(window.draw.recent_first[:9], window.draw.recent_count[:9], strict=True)
    ]
    assert recent == [[], [8], [8, 8], [], [5], [5, 6], [], [], []]
    assert window.axis[:, :4].tolist() == [[19, 20, 21, 7]] * 3
    assert state.axis_ring[2, 31 % 16].tolist() == [20, 20, 20]


def test_an_empty_window(device: str) -> None:
    window = Window(make_state(device), [], bucket=3)
    assert_rows(window.rows, window_rows([], bucket=3, slots=SLOTS, device=device))


VERDICTS: dict[str, tuple[list[int], int, int]] = {
    "all-right": ([8, 8, 9, 17], 4, 17),
    "first-wrong": ([1, 8, 9, 17], 1, 1),
    "last-wrong": ([8, 8, 2, 17], 3, 2),
    "right-after-a-wrong-one": ([8, 3, 9, 17], 2, 3),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_drafts_stay_up_to_the_first_wrong_one(device: str, name: str) -> None:
    drawn, kept, token = VERDICTS[name]
    state = make_state(device)
    window = Window(state, [SpanPlan(slot=1, rows=1), SpanPlan(slot=2, rows=4)], bucket=6)
    ids = torch.tensor([33, *drawn, -1], dtype=torch.int32, device=device)
    generated = torch.zeros((SLOTS + 1, VOCABULARY), dtype=torch.int32, device=device)
    out, chain = Verdict.empty(rows=6, device=device), Chain.empty(rows=4, state=state)
    accept(ids, window.rows, forced=window.forced, state=state, out=out, chain=chain, generated=generated)
    assert out.kept.tolist() == [1, kept, 0, 0, 0, 0]
    assert out.next_token[:2].tolist() == [33, token]
    assert out.last_row[:2].tolist() == [0, kept]
    tail = [0] * (4 - kept)
    assert out.following.tolist() == [33, *drawn[: kept - 1], token, *tail, 0]
    assert state.length[:4].tolist() == [7, 13, 30 + kept, 0]
    assert state.next_token[:4].tolist() == [40, 33, token, 43]
    assert state.draft_count.tolist()[1:3] == [0, 0]
    counted = torch.bincount(torch.tensor(drawn[:kept]), minlength=VOCABULARY)
    assert generated[2].tolist() == counted.tolist()
    assert generated.sum() == 1 + kept
    line = chain.rows
    assert line.slot.tolist() == [1, 2, SLOTS, SLOTS]
    assert line.position.tolist() == [12, 29 + kept, 0, 0]
    assert chain.draw.position[:2].tolist() == [14, 31 + kept]
    assert chain.axis_position[0, 1] == 29 + kept - 11
    assert line.rows_used.tolist() == [2]


def test_a_prompt_that_goes_on_commits_its_rows_and_knows_its_next_token(device: str) -> None:
    state = make_state(device)
    plan = [SpanPlan(slot=3, rows=3, tokens=(1, 2, 3), start=0, certain=3, next_token=4)]
    window = Window(state, plan, bucket=3)
    generated = torch.zeros((SLOTS + 1, VOCABULARY), dtype=torch.int32, device=device)
    out, chain = Verdict.empty(rows=3, device=device), Chain.empty(rows=1, state=state)
    ids = torch.zeros(3, dtype=torch.int32, device=device)
    accept(ids, window.rows, forced=window.forced, state=state, out=out, chain=chain, generated=generated)
    assert (state.length[3], state.next_token[3]) == (3, 4)
    assert out.following.tolist() == [2, 3, 4]
    assert generated.sum() == 0


CHAINS: dict[str, tuple[list[float], int, int, int]] = {
    "to-the-limit": ([0.9, 0.9, 0.9], 3, 64, 3),
    "an-unlikely-token-ends-it": ([0.9, 0.4, 0.9], 3, 64, 1),
    "the-least-itself-is-enough": ([0.5, 0.5, 0.1], 3, 64, 2),
    "the-slots-own-limit": ([0.9, 0.9, 0.9], 2, 64, 2),
    "no-drafts-wanted": ([0.9, 0.9, 0.9], 0, 64, 0),
    "the-end-of-the-pages": ([0.9, 0.9, 0.9], 3, 15, 2),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_ends(device: str, name: str) -> None:
    shares, limit, capacity, count = CHAINS[name]
    state = make_state(device)
    state.draft_limit[1] = limit
    state.capacity[1] = capacity
    window = Window(state, [SpanPlan(slot=1, rows=1)], bucket=2)
    out, chain = Verdict.empty(rows=2, device=device), Chain.empty(rows=2, state=state)
    ids = torch.tensor([33, 0], dtype=torch.int32, device=device)
    accept(ids, window.rows, forced=window.forced, state=state, out=out, chain=chain)
    for step, share in enumerate(shares):
        drawn = torch.tensor([20 + step, 0], dtype=torch.int32, device=device)
        likely = torch.tensor([share, 0.0], device=device)
        draft_step(drawn, likely, chain, step=step, state=state, furthest=64)
        assert chain.rows.position[0] == 13 + step
        assert chain.draw.position[0] == 15 + step
        assert chain.draw.recent_count[0] == step + 1
    assert chain.active.tolist() == [0, 0]
    assert state.draft_count[1] == count
    assert state.drafts[1, :count].tolist() == [20, 21, 22][:count]
    again = Window(state, [SpanPlan(slot=1, rows=4)], bucket=4)
    assert again.rows.tokens[: 1 + count].tolist() == [33, 20, 21, 22][: 1 + count]
    assert again.rows.rows_used == 1 + count


def test_plans_that_do_not_fit() -> None:
    out = np.zeros(plan_size(2), dtype=np.int32)
    for plan, sentence in (
        ([SpanPlan(slot=0, rows=3)], "does not fit a bucket of 2"),
        ([SpanPlan(slot=0, rows=1), SpanPlan(slot=0, rows=1)], "every slot has one span"),
        ([SpanPlan(slot=0, rows=2, tokens=(1,), start=0)], "do not fit together"),
        ([SpanPlan(slot=0, rows=1, tokens=(1,))], "do not fit together"),
    ):
        with pytest.raises(ValueError, match=sentence):
            pack_plan(plan, bucket=2, out=out)
