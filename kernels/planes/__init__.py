"""Quantised matrices in the register order of tensor-core products, and operand rows for them."""

from kernels.planes.format import FORMATS, FORMATS_OF_TYPE, PlaneFormat, formats_of, stored_bits
from kernels.planes.gate_up import common_format, pack_gate_up
from kernels.planes.levels import level_words
from kernels.planes.operand import from_operand, operand_columns, to_operand
from kernels.planes.pack import choose_format, pack
from kernels.planes.planes import Planes, join, word_count
from kernels.planes.unpack import unpack

__all__ = [
    "FORMATS",
    "FORMATS_OF_TYPE",
    "PlaneFormat",
    "Planes",
    "choose_format",
    "common_format",
    "formats_of",
    "from_operand",
    "join",
    "level_words",
    "operand_columns",
    "pack",
    "pack_gate_up",
    "stored_bits",
    "to_operand",
    "unpack",
    "word_count",
]
