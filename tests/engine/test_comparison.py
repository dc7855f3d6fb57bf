"""The comparison of greedy answers itself: it forgives a near-tie, prints it, and nothing else."""

from __future__ import annotations

import pytest
import torch

from tests.builders.fake_model import FakeModel
from tests.engine.harness import play, running
from tests.engine.real import require_greedy, require_same

PROMPT = (3, 1, 4, 1, 5)
PLACE = 6


class Tied(FakeModel):
    """The token after eleven others has a runner-up that is `gap` behind."""

    def __init__(self, gap: float) -> None:
        """Prefers token 20 to token 30."""
        super().__init__()
        self._gap = gap

    def row(self, prefix: tuple[int, ...]) -> torch.Tensor:
        """Float32 logits [vocabulary] after a prefix."""
        logits = super().row(prefix)
        if len(prefix) == len(PROMPT) + PLACE:
            logits = logits.clone()
            logits[20], logits[30] = 40.0, 40.0 - self._gap
        return logits


def answers(model: Tied) -> tuple[list[int], list[int]]:
    """The greedy answer, and the one that takes the runner-up and goes on greedily from there."""
    greedy = model.greedy(PROMPT, 12)
    other = [*greedy[:PLACE], 30]
    return greedy, [*other, *model.greedy((*PROMPT, *other), 12 - len(other))]


def compare(model: Tied, found: list[int], expected: list[int]) -> None:
    """Runs both comparisons."""

    async def scenario() -> None:
        async with running(model) as run:
            await require_same(run, PROMPT, found, expected)
            await require_greedy(run, PROMPT, found)

    play(scenario)


def test_a_near_tie_is_forgiven_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    greedy, other = answers(Tied(5e-5))
    assert greedy != other
    compare(Tied(5e-5), other, greedy)
    assert "token 6: 30 instead of 20" in capsys.readouterr().out


def test_a_clear_difference_is_not() -> None:
    greedy, other = answers(Tied(1e-2))
    with pytest.raises(AssertionError):
        compare(Tied(1e-2), other, greedy)


def test_what_follows_a_near_tie_is_still_compared() -> None:
    greedy, other = answers(Tied(5e-5))
    wrong = [*other[:-1], (other[-1] + 1) % 61]
    with pytest.raises(AssertionError):
        compare(Tied(5e-5), wrong, greedy)
