"""What the launches of a window depend on, and how many windows may be on their way; one graph for each shape."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.model.qwen4exp.device.work import Draws


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What the launches of a step depend on.

    Attributes:
        rows: bucket of the window.
        spans: bucket of its spans.
        steps: drafts to grow; 0 leaves the chain out.
        draws: how its slots draw.
        chunk: the window is the last row of a prompt chunk, whose layers run before it.
    """

    rows: int
    spans: int
    steps: int
    draws: Draws
    chunk: bool = False


def read_lanes(stages: int) -> int:
    """Windows of prompts beside those of the groups: one for every stage and one to come; none with one stage."""
    return stages + 1 if stages > 1 else 0


def lanes_of(stages: int, groups: int) -> int:
    """Windows that may be on their way; with one stage, the next one while one is computed."""
    return groups + read_lanes(stages) if stages > 1 else max(2, groups)
