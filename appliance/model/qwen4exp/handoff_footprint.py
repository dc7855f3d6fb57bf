"""What passing windows and prompt chunks from card to card takes, in bytes; torch-free arithmetic over the spec."""

from __future__ import annotations

from appliance.model.qwen4exp.device_footprint import WINDOW_ROWS
from appliance.model.qwen4exp.footprint import FLOAT
from appliance.model.qwen4exp.spec import ModelSpec


def read_lanes(stages: int) -> int:
    """Windows of prompts beside those of the groups: one for every stage and one to come; none with one stage."""
    return stages + 1 if stages > 1 else 0


def lanes_of(stages: int, groups: int) -> int:
    """Windows that may be on their way; with one stage, the next one while one is computed."""
    return groups + read_lanes(stages) if stages > 1 else max(2, groups)


def landing_bytes(spec: ModelSpec, *, stages: int, groups: int) -> int:
    """Of one border: a place for the streams of every lane's window, the host's own included.

    On the later card where the earlier one reaches it, else in pinned RAM.
    """
    return (lanes_of(stages, groups) + 1) * WINDOW_ROWS * spec.wide * FLOAT


def leaving_bytes(spec: ModelSpec, *, rows: int, stages: int) -> int:
    """On the earlier card of a border: streams of chunks that are on their way out while the next ones begin.

    The one that is computed counts among the rows of a chunk; the host is ahead by all lanes of prompts.
    """
    return max(0, read_lanes(stages) - 1) * rows * spec.wide * FLOAT


def pinned_bytes(spec: ModelSpec, *, rows: int, stages: int, groups: int) -> int:
    """In RAM, of a border whose cards do not reach each other: landing places, and every chunk on its way."""
    return landing_bytes(spec, stages=stages, groups=groups) + read_lanes(stages) * rows * spec.wide * FLOAT
