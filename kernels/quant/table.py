"""The table of ggml types this package can unpack: block sizes, where the scales lie, and the function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from kernels.quant import (
    bf16,
    f16,
    f32,
    iq1_m,
    iq1_s,
    iq2_s,
    iq2_xs,
    iq2_xxs,
    iq3_s,
    iq3_xxs,
    iq4_nl,
    iq4_xs,
    q2_0,
    q2_k,
    q3_k,
    q4_0,
    q4_1,
    q4_k,
    q5_0,
    q5_1,
    q5_k,
    q6_k,
    q8_0,
)


@dataclass(frozen=True, slots=True)
class Format:
    """One ggml type.

    Attributes:
        block_weights: weights in a block.
        block_bytes: bytes of a block.
        scale_offsets: bytes at which a block's f16 scales lie; empty where the values themselves must be looked at.
        unpack: uint8 [blocks, block_bytes] to float32 [blocks, block_weights], on the device of its argument.
    """

    block_weights: int
    block_bytes: int
    scale_offsets: tuple[int, ...]
    unpack: Callable[[Tensor], Tensor]


FORMATS: dict[str, Format] = {
    "F32": Format(1, 4, (), f32.unpack),
    "F16": Format(1, 2, (0,), f16.unpack),
    "BF16": Format(1, 2, (), bf16.unpack),
    "Q8_0": Format(32, 34, (0,), q8_0.unpack),
    "Q5_1": Format(32, 24, (0, 2), q5_1.unpack),
    "Q5_0": Format(32, 22, (0,), q5_0.unpack),
    "Q4_1": Format(32, 20, (0, 2), q4_1.unpack),
    "Q4_0": Format(32, 18, (0,), q4_0.unpack),
    "Q2_0": Format(64, 18, (0,), q2_0.unpack),
    "Q6_K": Format(256, 210, (208,), q6_k.unpack),
    "Q5_K": Format(256, 176, (0, 2), q5_k.unpack),
    "Q4_K": Format(256, 144, (0, 2), q4_k.unpack),
    "Q3_K": Format(256, 110, (108,), q3_k.unpack),
    "Q2_K": Format(256, 84, (80, 82), q2_k.unpack),
    "IQ4_NL": Format(32, 18, (0,), iq4_nl.unpack),
    "IQ4_XS": Format(256, 136, (0,), iq4_xs.unpack),
    "IQ3_S": Format(256, 110, (0,), iq3_s.unpack),
    "IQ3_XXS": Format(256, 98, (0,), iq3_xxs.unpack),
    "IQ2_S": Format(256, 82, (0,), iq2_s.unpack),
    "IQ2_XS": Format(256, 74, (0,), iq2_xs.unpack),
    "IQ2_XXS": Format(256, 66, (0,), iq2_xxs.unpack),
    "IQ1_S": Format(256, 50, (0,), iq1_s.unpack),
    "IQ1_M": Format(256, 56, (), iq1_m.unpack),
}
