"""Attention of a window's rows over keys and values in pages."""

from kernels.attention.op import attend, causal_mask, gather_pages

__all__ = ["attend", "causal_mask", "gather_pages"]
