"""Sparse attention's indexer: pooled block keys, block scores, and the tokens a query may see."""

from kernels.qsa.op import pool_keys, select_blocks, selection_mask

__all__ = ["pool_keys", "select_blocks", "selection_mask"]
