"""Every ggml tensor type: its number, its block, and which of them this engine can compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class GgmlType:
    """How a tensor's weights are stored.

    Attributes:
        name: ggml's name in capitals.
        number: what a GGUF directory entry holds.
        block_weights: weights in one block; the innermost dimension is a multiple of it.
        block_bytes: bytes of one block.
    """

    name: str
    number: int
    block_weights: int
    block_bytes: int

    @property
    def bits_per_weight(self) -> float:
        """Storage cost with scales."""
        return self.block_bytes * 8 / self.block_weights


# ggml.h and ggml-common.h. Q8_1 is 36 bytes there (two half scales); the gguf package still says 40.
_TYPES: Final = (
    GgmlType("F32", 0, 1, 4),
    GgmlType("F16", 1, 1, 2),
    GgmlType("Q4_0", 2, 32, 18),
    GgmlType("Q4_1", 3, 32, 20),
    GgmlType("Q5_0", 6, 32, 22),
    GgmlType("Q5_1", 7, 32, 24),
    GgmlType("Q8_0", 8, 32, 34),
    GgmlType("Q8_1", 9, 32, 36),
    GgmlType("Q2_K", 10, 256, 84),
    GgmlType("Q3_K", 11, 256, 110),
    GgmlType("Q4_K", 12, 256, 144),
    GgmlType("Q5_K", 13, 256, 176),
    GgmlType("Q6_K", 14, 256, 210),
    GgmlType("Q8_K", 15, 256, 292),
    GgmlType("IQ2_XXS", 16, 256, 66),
    GgmlType("IQ2_XS", 17, 256, 74),
    GgmlType("IQ3_XXS", 18, 256, 98),
    GgmlType("IQ1_S", 19, 256, 50),
    GgmlType("IQ4_NL", 20, 32, 18),
    GgmlType("IQ3_S", 21, 256, 110),
    GgmlType("IQ2_S", 22, 256, 82),
    GgmlType("IQ4_XS", 23, 256, 136),
    GgmlType("I8", 24, 1, 1),
    GgmlType("I16", 25, 1, 2),
    GgmlType("I32", 26, 1, 4),
    GgmlType("I64", 27, 1, 8),
    GgmlType("F64", 28, 1, 8),
    GgmlType("IQ1_M", 29, 256, 56),
    GgmlType("BF16", 30, 1, 2),
    GgmlType("TQ1_0", 34, 256, 54),
    GgmlType("TQ2_0", 35, 256, 66),
    GgmlType("MXFP4", 39, 32, 17),
    GgmlType("NVFP4", 40, 64, 36),
    GgmlType("Q1_0", 41, 128, 18),
    GgmlType("Q2_0", 42, 64, 18),
)

BY_NUMBER: Final[Mapping[int, GgmlType]] = MappingProxyType({t.number: t for t in _TYPES})
BY_NAME: Final[Mapping[str, GgmlType]] = MappingProxyType({t.name: t for t in _TYPES})

# Numbers that once were a type and are no longer written by anyone.
REMOVED: Final[Mapping[int, str]] = MappingProxyType(
    {
        4: "Q4_2",
        5: "Q4_3",
        31: "Q4_0_4_4",
        32: "Q4_0_4_8",
        33: "Q4_0_8_8",
        36: "IQ4_NL_4_4",
        37: "IQ4_NL_4_8",
        38: "IQ4_NL_8_8",
    }
)

# What kernels.quant can unpack. Written twice because nothing here may load torch; a test keeps the two equal.
COMPUTABLE: Final = (
    "F32",
    "F16",
    "BF16",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_0",
    "IQ4_NL",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_XS",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ2_S",
    "IQ3_XXS",
    "IQ3_S",
    "IQ1_S",
    "IQ1_M",
)

# A fork stores type 42 as 34 bytes per 128 weights; recognised by the room its tensors have, and refused.
FORK_Q2_0_WEIGHTS: Final = 128
FORK_Q2_0_BYTES: Final = 34


def type_label(number: int) -> str:
    """What to call a type number in a message: its name where it has or had one."""
    known = BY_NUMBER.get(number)
    if known is not None:
        return f"type {known.name} ({number})"
    return f"type {REMOVED[number]} ({number}, removed from ggml)" if number in REMOVED else f"unknown type {number}"
