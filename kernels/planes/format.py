"""The plane formats, and which of them holds each ggml type.

Planes are strips of 32 rows, one after the other. A strip holds the codes of its tiles (32 rows x 128 inputs), then
their scales, then one float32 multiplier (a power of two) and three words of padding. Everything is uint32 words in
the register order of mma.m16n8k16, so that a lane's 16-byte load is its operand:

    row r = 16 g + 8 q + a,  input k = 64 mj + 16 b + 8 mr + 4 h + i,  m = 2 mj + mr,  lane = 4 a + b

    4 bits  [q g][lane][m]        code (h, i) at bit 16 h + 4 i
    2 bits  [q][lane][g mj]       code (mr, h, i) at bit 16 h + 4 i + 2 mr
    1 bit   [lane][q g]           code (m, h, i) at bit 16 h + 4 i + m
    8 bits  [i / 2][q g][lane][m] code (i % 2, h) at bit 16 (i % 2) + 8 h
    16      [i][q g][lane][m]     fp16, h = 0 in the low half
    32      [h][i][q g][lane][m]  float32

3, 5 and 6 bits are a plane of 2, 4 and 4 low bits and a plane of 1, 1 and 2 high bits. The codebook form has four
8-bit indices [q][lane][g mj] at (mr, h), signs as a 1-bit plane and ninth bits [lane] at bit 8 (q g) + 2 m + h.

value = multiplier * (d * step * (code - zero) + low * low_step), code through a table of bytes where there is one.
d and low are fp16, stored times 4096 (the fast kernels turn codes into fp16 subnormals, which need scales below 2^-8);
steps are small integers. A step is stored as itself (4 bits) or plus 128 (8 bits), or as s where it is 2 s + 1 (odd).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TILE_ROWS: Final = 32
TILE_COLUMNS: Final = 128
TAIL_WORDS: Final = 4
STEP_BIAS: Final = 128

# Byte tables hold level + 128. Where a code is a sign and a magnitude m of 8, it is 8 + m or, negative, 7 - m.
TABLES: Final[dict[str, tuple[int, ...]]] = {
    "": (),
    "iq4": (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
    "iq3": (-62, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62),
    "iq2": (8, 25, 43, 0, -8, -25, -43, 0),
    "iq1": (-9, -1, 7, 0, -7, 1, 9, 0),
}
_TABLE_NUMBERS: Final = tuple(TABLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneFormat:
    """How codes and scales are stored.

    Attributes:
        name: of the format.
        bits: of a code: 2, 3, 4, 5, 6, 8; 16 and 32 are fp16 and float32 without scales.
        table: name of the byte table that codes go through, or "".
        zero: subtracted from a code; 128 for tables.
        group: inputs that share a scale, 16 or 32.
        step_bits: 0 (fp16 scales), 4 or 8 (integer steps of one fp16 for 128 inputs).
        odd: steps are 2 s + 1.
        low: an offset is added to each group.
        codebook: codes of 4 inputs are looked up together in a grid (IQ3_S as in the file).
    """

    name: str
    bits: int
    table: str = ""
    zero: float = 0.0
    group: int = 32
    step_bits: int = 0
    odd: bool = False
    low: bool = False
    codebook: bool = False

    @property
    def code_words(self) -> int:
        """Words of a tile's codes."""
        return 416 if self.codebook else self.bits * TILE_COLUMNS

    @property
    def scale_words(self) -> int:
        """Words of a tile's scales."""
        if self.bits >= 16:
            return 0
        sets = 2 if self.low else 1
        if self.step_bits == 0:
            return sets * 2048 // self.group
        if self.step_bits == 4 and self.group == 32:
            return 32
        steps = 64 if (self.step_bits, self.group) == (8, 16) else 32
        return sets * (steps + 16)

    @property
    def tile_words(self) -> int:
        """Words of a tile."""
        return self.code_words + self.scale_words

    @property
    def packed(self) -> int:
        """The format as one integer, for kernels (see `_decode.py`)."""
        fields = (
            (self.bits, 0),
            (_TABLE_NUMBERS.index(self.table), 6),
            (int(self.group == 16), 9),
            (self.step_bits // 4, 10),
            (int(self.odd), 12),
            (int(self.low), 13),
            (int(self.zero * 2), 14),
            (int(self.codebook), 23),
        )
        return sum(value << at for value, at in fields)

    def strip_words(self, columns: int) -> int:
        """Words of a strip of 32 rows of `columns` inputs."""
        return -(-columns // TILE_COLUMNS) * self.tile_words + TAIL_WORDS


FORMATS: Final[dict[str, PlaneFormat]] = {
    form.name: form
    for form in (
        PlaneFormat(name="q8", bits=8, zero=128),
        PlaneFormat(name="q6k", bits=6, zero=32, group=16, step_bits=8),
        PlaneFormat(name="q5", bits=5, zero=16),
        PlaneFormat(name="q5m", bits=5, low=True),
        PlaneFormat(name="q5k", bits=5, step_bits=8, low=True),
        PlaneFormat(name="q4", bits=4, zero=8),
        PlaneFormat(name="q4m", bits=4, low=True),
        PlaneFormat(name="q4k", bits=4, step_bits=8, low=True),
        PlaneFormat(name="q3k", bits=3, zero=4, group=16, step_bits=8),
        PlaneFormat(name="q2k", bits=2, group=16, step_bits=4, low=True),
        PlaneFormat(name="q2", bits=2, zero=1),
        PlaneFormat(name="lut4", bits=4, table="iq4", zero=128),
        PlaneFormat(name="lut4k", bits=4, table="iq4", zero=128, step_bits=8),
        PlaneFormat(name="i4", bits=4, zero=7.5, step_bits=4, odd=True),
        PlaneFormat(name="iq3", bits=4, zero=7.5, step_bits=4, odd=True, codebook=True),
        PlaneFormat(name="lut4o", bits=4, table="iq3", zero=128, step_bits=4, odd=True),
        PlaneFormat(name="lut2", bits=3, table="iq2", zero=128, step_bits=4, odd=True),
        PlaneFormat(name="lut2s", bits=3, table="iq2", zero=128, group=16, step_bits=4, odd=True),
        PlaneFormat(name="lut1", bits=3, table="iq1", zero=128, step_bits=4, odd=True),
        PlaneFormat(name="lut1s", bits=3, table="iq1", zero=128, group=16, step_bits=4, odd=True),
        PlaneFormat(name="wide", bits=8, group=16, low=True),
        PlaneFormat(name="half", bits=16),
        PlaneFormat(name="full", bits=32),
    )
}

# ggml type to the formats it can be packed in, the one for device memory first.
FORMATS_OF_TYPE: Final[dict[str, tuple[str, ...]]] = {
    "F32": ("full",),
    "F16": ("half", "full"),
    "BF16": ("half", "full"),
    "Q8_0": ("q8",),
    "Q6_K": ("q6k",),
    "Q5_K": ("q5k",),
    "Q5_1": ("q5m",),
    "Q5_0": ("q5",),
    "Q4_K": ("q4k",),
    "Q4_1": ("q4m",),
    "Q4_0": ("q4",),
    "Q3_K": ("q3k",),
    "Q2_K": ("q2k",),
    "Q2_0": ("q2",),
    "IQ4_NL": ("lut4",),
    "IQ4_XS": ("lut4k",),
    "IQ3_S": ("i4", "iq3"),
    "IQ3_XXS": ("lut4o",),
    "IQ2_S": ("lut2s",),
    "IQ2_XS": ("lut2s",),
    "IQ2_XXS": ("lut2",),
    "IQ1_S": ("lut1",),
    "IQ1_M": ("lut1s",),
}
ANY_TYPE: Final = "wide"


def formats_of(type_name: str) -> tuple[PlaneFormat, ...]:
    """The formats a ggml type can be packed in, the usual one first; every blocked type also fits `wide` (lossy).

    Raises:
        ValueError: a type that has no planes.
    """
    names = FORMATS_OF_TYPE.get(type_name)
    if names is None:
        raise ValueError(f"ggml type {type_name} has no planes; supported: {', '.join(FORMATS_OF_TYPE)}")
    wide = () if FORMATS[names[0]].bits >= 16 else (ANY_TYPE,)
    return tuple(FORMATS[name] for name in names + wide)


def stored_bits(form: PlaneFormat) -> float:
    """Bits a weight of a matrix whose sides are whole tiles, without the strips' tails."""
    return form.tile_words * 32 / (TILE_ROWS * TILE_COLUMNS)
