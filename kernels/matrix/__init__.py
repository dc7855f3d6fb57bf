"""Matrices that are multiplied from int8 codes with float32 scales, and how stored blocks become such."""

from kernels.matrix.matrix import Matrix
from kernels.matrix.op import multiply, multiply_tiles
from kernels.matrix.part import Part, join, stack, stored

__all__ = ["Matrix", "Part", "join", "multiply", "multiply_tiles", "stack", "stored"]
