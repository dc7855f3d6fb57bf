"""Owns the schedule of groups through stages as a simulation: stage times in; idle shares, fairness and pace out.

A group is the conversations that share a window. Its window passes the stages in order; the last one verifies and
drafts, and only then the group begins again at the first. A stage computes one window at a time, in the order in which
they came. A prompt's next chunk queues at the first stage when the one before it has left that stage, so windows of
groups that wait go first.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

# Rounds of all groups before anything is counted, and rounds that are.
WARM_ROUNDS, ROUNDS = 2, 12
# Where only the pace is asked for, which is steady from the second round on.
FEW_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Stages as times in seconds.

    Attributes:
        window_s: of each stage, for a window of one conversation; verification and drafts are in the last.
        more_s: of each stage, for every further conversation in the window.
        handoff_s: from each stage to the next, and from the last back to the first; no stage waits for it.
    """

    window_s: tuple[float, ...]
    more_s: tuple[float, ...]
    handoff_s: tuple[float, ...]

    def stage_s(self, stage: int, conversations: int) -> float:
        """Of one window."""
        return self.window_s[stage] + (conversations - 1) * self.more_s[stage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt that is read beside the groups: how many chunks, and each chunk's seconds on each stage."""

    at_s: float
    chunks: int
    chunk_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What came of it, once everything runs.

    Attributes:
        groups: conversations of each.
        idle: of each stage, the share of time without work.
        windows: that each group finished.
        pace: windows a second of each group.
        prompts_s: from each prompt's arrival to the end of its last chunk.
    """

    groups: tuple[int, ...]
    idle: tuple[float, ...]
    windows: tuple[int, ...]
    pace: tuple[float, ...]
    prompts_s: tuple[float, ...]

    @property
    def fairness(self) -> float:
        """Windows of the group that got fewest over those of the one that got most, in the same time; 1 is fair."""
        return min(self.windows) / max(self.windows)

    @property
    def conversation_windows_per_s(self) -> float:
        """Windows a second, each counted for every conversation in it."""
        return sum(pace * size for pace, size in zip(self.pace, self.groups, strict=True))


def spread(users: int, groups: int) -> tuple[int, ...]:
    """Conversations of each group, the difference between two never above one."""
    groups = max(1, min(users, groups))
    return tuple(users // groups + (number < users % groups) for number in range(groups))


def simulate(
    pipeline: Pipeline, groups: Sequence[int], prompts: Sequence[Prompt] = (), *, rounds: int = ROUNDS
) -> Schedule:
    """Plays the groups until each has made its rounds.

    Args:
        pipeline: the stages.
        groups: conversations of each group, at least one group.
        prompts: read meanwhile.
        rounds: to count.
    """
    stages, order = len(pipeline.window_s), itertools.count()
    sources = [[pipeline.stage_s(stage, size) for stage in range(stages)] for size in groups]
    sources += [list(prompt.chunk_s) for prompt in prompts]
    chunks = [0] * len(groups) + [prompt.chunks for prompt in prompts]
    free = [0.0] * stages
    work: list[list[tuple[float, float]]] = [[] for _ in range(stages)]
    ends: list[list[float]] = [[] for _ in sources]
    # (ready at, order of coming, source, stage): what waits for a stage.
    heap = [(0.0, next(order), number, 0) for number in range(len(groups))]
    heap += [(prompt.at_s, next(order), len(groups) + n, 0) for n, prompt in enumerate(prompts)]
    heapq.heapify(heap)
    while any(len(ends[number]) < WARM_ROUNDS + rounds for number in range(len(groups))):
        ready, _, source, stage = heapq.heappop(heap)
        start = max(ready, free[stage])
        end = free[stage] = start + sources[source][stage]
        work[stage].append((start, end))
        passed_on = end + pipeline.handoff_s[stage]
        if stage + 1 < stages:
            heapq.heappush(heap, (passed_on, next(order), source, stage + 1))
        else:
            ends[source].append(end)
            if source < len(groups):
                heapq.heappush(heap, (passed_on, next(order), source, 0))
        if source >= len(groups) and stage == 0:
            chunks[source] -= 1
            if chunks[source]:
                heapq.heappush(heap, (end, next(order), source, 0))
    return _counted(groups, prompts, work, ends)


def _counted(
    groups: Sequence[int],
    prompts: Sequence[Prompt],
    work: Sequence[Sequence[tuple[float, float]]],
    ends: Sequence[Sequence[float]],
) -> Schedule:
    """Counts from when every group has made its warm rounds until the first has made all."""
    begin = max(ends[number][WARM_ROUNDS - 1] for number in range(len(groups)))
    stop = min(ends[number][-1] for number in range(len(groups)))
    busy = [sum(max(0.0, min(end, stop) - max(start, begin)) for start, end in one) for one in work]
    own = [[end for end in ends[number] if begin <= end <= stop] for number in range(len(groups))]
    return Schedule(
        groups=tuple(groups),
        idle=tuple(max(0.0, 1 - one / (stop - begin)) for one in busy),
        windows=tuple(len(one) for one in own),
        pace=tuple((len(one) - 1) / (one[-1] - one[0]) for one in own),
        prompts_s=tuple(
            found[-1] - prompt.at_s if len(found) == prompt.chunks else float("inf")
            for prompt, found in zip(prompts, ends[len(groups) :], strict=True)
        ),
    )


def best(pipeline: Pipeline, users: int, *, most_groups: int) -> Schedule:
    """The number of groups that makes most windows for all conversations together; the fewest of equals."""
    counts = range(1, min(users, most_groups) + 1)
    found = [simulate(pipeline, spread(users, groups), rounds=FEW_ROUNDS) for groups in counts]
    return max(found, key=lambda one: round(one.conversation_windows_per_s, 6))
