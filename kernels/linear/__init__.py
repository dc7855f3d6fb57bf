"""Products of operand rows with quantised matrices, for decode windows."""

from kernels.linear.op import MAX_ROWS, linear, linear_pair, splits

__all__ = ["MAX_ROWS", "linear", "linear_pair", "splits"]
