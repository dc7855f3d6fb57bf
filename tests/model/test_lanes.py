"""Conversations on several threads: how a window is cut, and that nobody can tell."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from appliance.model.qwen4exp.attention import Tap
from appliance.model.qwen4exp.cpu import Qwen4Exp
from appliance.model.qwen4exp.forward import _ignore
from appliance.model.qwen4exp.lanes import Lanes
from appliance.model.window import Commit, Span, Window
from tests.model.models import TINY, greedy, open_slot, plan_of, spec_of

CUTS = {
    "one": (2, [5], [[5]]),
    "even": (2, [5, 5, 5, 5], [[5, 5], [5, 5]]),
    "odd": (2, [5, 5, 5], [[5, 5], [5]]),
    "a long one first": (2, [300, 5, 5], [[300], [5, 5]]),
    "a long one last": (2, [5, 5, 300], [[5, 5], [300]]),
    "more lanes than conversations": (4, [5, 5], [[5], [5]]),
    "one lane": (1, [3, 4, 5], [[3, 4, 5]]),
    "three": (3, [1, 1, 1, 1, 1, 1], [[1, 1], [1, 1], [1, 1]]),
    "none": (2, [], []),
}


@pytest.mark.parametrize(("lanes", "sizes", "wanted"), CUTS.values(), ids=CUTS)
def test_cuts_are_neighbours_of_about_equal_size(lanes: int, sizes: list[int], wanted: list[list[int]]) -> None:
    assert [sizes[cut] for cut in Lanes(lanes).cut(sizes)] == wanted


def test_cuts_run_at_the_same_time_and_results_keep_their_order() -> None:
    together = threading.Barrier(3)

    def work(cut: slice) -> int:
        together.wait(timeout=30)
        return cut.start

    lanes = Lanes(3)
    assert lanes.run(work, lanes.cut([1, 1, 1])) == [0, 1, 2]


def test_a_fault_on_another_thread_reaches_the_caller() -> None:
    def work(cut: slice) -> None:
        if cut.start:
            raise ValueError("lane")

    lanes = Lanes(2)
    with pytest.raises(ValueError, match="lane"):
        lanes.run(work, lanes.cut([1, 1]))


def chat(threads: int, *, slots: int = 3, tap: Tap = _ignore) -> list[np.ndarray]:
    """Logits and drafts of three windows of so many conversations."""
    model = Qwen4Exp(spec_of(TINY), plan_of(slots=slots), lambda sentence, percent: None, threads=threads)
    following: list[tuple[int, ...]] = []
    for slot in range(slots):
        open_slot(model, slot)
        following.append(tuple(range(20 + slot, 40 + 3 * slot)))
    found: list[np.ndarray] = []
    for _ in range(3):
        spans = [Span(slot=slot, start=model.length(slot), tokens=tokens) for slot, tokens in enumerate(following)]
        logits = model.forward_at(Window(tuple(spans)), tap=tap)
        ends = np.cumsum([len(tokens) for tokens in following]) - 1
        commits = [
            Commit(slot=slot, kept=len(tokens), next_token=int(logits[end].argmax()), draft_max=3)
            for slot, (tokens, end) in enumerate(zip(following, ends, strict=True))
        ]
        drafts = model.advance(commits[::-1], greedy)[::-1]
        found.append(logits.numpy())
        found.extend(np.array(draft.probabilities) for draft in drafts)
        following = [(c.next_token, *d.tokens) for c, d in zip(commits, drafts, strict=True)]
    return found


def test_threads_change_nothing() -> None:
    alone, spread = chat(1), chat(3)
    assert all(np.array_equal(a, b) for a, b in zip(alone, spread, strict=True))


def test_block_by_block_is_the_same_as_at_once() -> None:
    seen: list[str] = []
    blocks = chat(1, slots=2, tap=lambda name, value: seen.append(name))
    assert seen
    assert all(np.array_equal(a, b) for a, b in zip(blocks, chat(2, slots=2), strict=True))
