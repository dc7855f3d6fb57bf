"""Rotary positions: angles of text or three-axis positions, and the rotation of half-split pairs."""

from kernels.rope.op import rope_tables

__all__ = ["rope_tables"]
