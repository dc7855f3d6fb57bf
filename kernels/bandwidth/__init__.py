"""Reads memory in place, as experts in pinned RAM are read, to learn what the link gives a kernel."""

from __future__ import annotations

from kernels.bandwidth.op import read_in_place

__all__ = ["read_in_place"]
