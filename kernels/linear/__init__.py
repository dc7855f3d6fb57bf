"""Products of operand rows with quantised matrices, for decode windows."""

from kernels.linear.op import MAX_ROWS, linear, splits

__all__ = ["MAX_ROWS", "linear", "splits"]
