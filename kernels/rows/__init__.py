"""Rows of a decode window made on the device: from the host's plan, from what was kept, along a draft chain."""

from kernels.rows.op import accept, draft_step, fill
from kernels.rows.plan import SpanPlan, pack_plan, plan_size
from kernels.rows.tables import Chain, DrawRows, SlotState, Verdict, empty_rows

__all__ = [
    "Chain",
    "DrawRows",
    "SlotState",
    "SpanPlan",
    "Verdict",
    "accept",
    "draft_step",
    "empty_rows",
    "fill",
    "pack_plan",
    "plan_size",
]
