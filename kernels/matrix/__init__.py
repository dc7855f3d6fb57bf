"""Matrices that are multiplied from int8 codes with float32 scales, and how stored blocks become such."""

from kernels.matrix.matrix import MATRIX, Matrix
from kernels.matrix.op import group_sums, multiply, multiply_tiles
from kernels.matrix.part import Part, join, stack, stored
from kernels.matrix.settle import settle

__all__ = ["MATRIX", "Matrix", "Part", "group_sums", "join", "multiply", "multiply_tiles", "settle", "stack", "stored"]
