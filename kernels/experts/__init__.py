"""Mixture of experts for decode windows: routing, entries, and the experts' products from VRAM or pinned memory."""

from kernels.experts.layout import (
    ExpertBuffers,
    ExpertKind,
    ExpertLayout,
    make_buffers,
    pack_expert,
    split_expert,
    table_entry,
)
from kernels.experts.op import down, gate_up, route

__all__ = [
    "ExpertBuffers",
    "ExpertKind",
    "ExpertLayout",
    "down",
    "gate_up",
    "make_buffers",
    "pack_expert",
    "route",
    "split_expert",
    "table_entry",
]
