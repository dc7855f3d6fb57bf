"""Rotary positions: angles of text or three-axis positions, and the rotation of half-split pairs."""

from kernels.rope.op import rope_tables, rotate_

__all__ = ["rope_tables", "rotate_"]
