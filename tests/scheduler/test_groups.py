"""How conversations are shared among the groups of the pipeline."""

from __future__ import annotations

import random

import pytest

from appliance.scheduler.groups import Groups
from appliance.scheduler.session import Session
from tests.scheduler.test_parts import session


def joined(groups: Groups, count: int) -> list[Session]:
    running = [session() for _ in range(count)]
    for one in running:
        groups.join(one)
    return running


@pytest.mark.parametrize(
    ("count", "users", "sizes"),
    [
        pytest.param(2, 0, (0, 0), id="nobody"),
        pytest.param(2, 1, (1, 0), id="one conversation is one group"),
        pytest.param(2, 2, (1, 1), id="two cards, two users"),
        pytest.param(3, 2, (1, 1, 0), id="fewer users than stages"),
        pytest.param(2, 5, (3, 2), id="odd"),
        pytest.param(4, 8, (2, 2, 2, 2), id="eight users"),
        pytest.param(1, 8, (8,), id="one group"),
    ],
)
def test_joiners_fill_the_smallest_group(count: int, users: int, sizes: tuple[int, ...]) -> None:
    groups = Groups(count)
    joined(groups, users)
    assert groups.sizes == sizes


@pytest.mark.parametrize(
    ("leave", "level", "sizes", "moved"),
    [
        pytest.param([], 0, (2, 2), [], id="level already"),
        pytest.param([1], 0, (2, 1), [], id="one apart is level"),
        pytest.param([1, 3], 0, (1, 1), [2], id="the youngest of the larger goes"),
        pytest.param([1, 3], 1, (2, 0), [], id="a small group gives nobody"),
        pytest.param([0, 1, 2, 3], 0, (0, 0), [], id="nobody is left"),
    ],
)
def test_groups_level_when_their_window_is_back(
    leave: list[int], level: int, sizes: tuple[int, ...], moved: list[int]
) -> None:
    groups = Groups(2)
    everyone = joined(groups, 4)
    before = [one.group for one in everyone]
    for number in leave:
        groups.leave(everyone[number])
    groups.level(level, [one for number, one in enumerate(everyone) if number not in leave])
    assert groups.sizes == sizes
    assert [number for number, one in enumerate(everyone) if one.group != before[number]] == moved


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_random_comings_and_goings_stay_level(count: int) -> None:
    groups, running, dice = Groups(count), joined(Groups(1), 0), random.Random(count)
    for _ in range(300):
        if running and dice.random() < 0.5:
            groups.leave(running.pop(dice.randrange(len(running))))
        elif len(running) < 8:
            running.append(session())
            groups.join(running[-1])
        for group in range(count):
            groups.level(group, running)
        assert max(groups.sizes) - min(groups.sizes) <= 1
        assert groups.sizes == tuple(sum(one.group == group for one in running) for group in range(count))
