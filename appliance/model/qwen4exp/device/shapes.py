"""What the launches of a window depend on; one graph for each shape."""

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
