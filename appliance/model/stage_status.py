"""What a stage of layers did so far; torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatus:
    """One card and its layers; seconds are totals since start.

    Attributes:
        device: such as "cuda:1".
        first_layer, past_layer: first and one past the last that it computes.
        windows: that passed through it.
        busy_s, idle_s: computing, and waiting for work while the engine had some.
        handoff_s: passing windows on to the next stage; 0.0 for the last.
        route: how they are passed on: "peer", "ram", "" for the last.
    """

    device: str
    first_layer: int
    past_layer: int
    windows: int
    busy_s: float
    idle_s: float
    handoff_s: float
    route: str
