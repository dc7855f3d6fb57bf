"""Reads rows of a raw table by token: kernels for the usual types, torch for the rest; both can be captured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from kernels.embedding import _triton
from kernels.quant import gather_rows, row_bytes
from kernels.quant.table import FORMATS
from kernels.terms import check_tensor, launch_options

# Numbers of `_decode.py`; types with codebooks are read by torch.
KINDS: Final[dict[str, int]] = {
    "F32": 0,
    "F16": 1,
    "BF16": 2,
    "Q8_0": 3,
    "Q4_0": 4,
    "Q4_1": 5,
    "Q5_0": 6,
    "Q5_1": 7,
    "IQ4_NL": 8,
    "Q2_0": 9,
    "Q4_K": 10,
    "Q5_K": 11,
    "Q6_K": 12,
    "IQ4_XS": 13,
    "Q3_K": 14,
    "Q2_K": 15,
}


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it lies in the file.

    Attributes:
        raw: uint8 [rows, row bytes], contiguous; on the device, or pinned on the host (then read over the link).
        type_name: ggml type of the rows.
        columns: weights of a row.
    """

    raw: torch.Tensor
    type_name: str
    columns: int

    @property
    def kind(self) -> dict[str, int]:
        """Constants for `_decode.decode`.

        Raises:
            ValueError: a type without a kernel.
        """
        if self.type_name not in KINDS:
            raise ValueError(f"rows of {self.type_name} have no kernel; allowed: {', '.join(KINDS)}")
        form = FORMATS[self.type_name]
        return {
            "KIND": KINDS[self.type_name],
            "BLOCK_WEIGHTS": form.block_weights,
            "BLOCK_BYTES": form.block_bytes,
            "ROW_BYTES": row_bytes(self.type_name, self.columns),
        }

    def check(self, what: str) -> None:
        """Raises ValueError unless the bytes are rows of that type."""
        width = row_bytes(self.type_name, self.columns)
        if self.raw.dtype != torch.uint8 or self.raw.dim() != 2 or self.raw.shape[1] != width:
            raise ValueError(
                f"{what}: rows of {self.columns} {self.type_name} weights are uint8 [rows, {width}], "
                f"found {self.raw.dtype} {list(self.raw.shape)}"
            )
        if not self.raw.is_contiguous():
            raise ValueError(f"{what}: the table's rows must be contiguous, found strides {self.raw.stride()}")


def by_kernel(table: Table, tokens: torch.Tensor) -> tuple[Table, torch.Tensor]:
    """A table that kernels read, and the rows to read: unpacked here first if the type has no kernel."""
    if table.type_name in KINDS:
        return table, tokens
    values = gather_rows(table.raw, tokens, table.type_name, columns=table.columns)
    numbers = torch.arange(tokens.shape[0], dtype=torch.int32, device=tokens.device)
    return Table(values.view(torch.uint8), "F32", table.columns), numbers


def embed(*, table: Table, tokens: torch.Tensor, x: torch.Tensor, pdl: bool) -> None:
    """Copies each token's row into every stream.

    Args:
        table: of the embedding.
        tokens: int32 [rows]; every one is below the table's rows.
        x: receives float32 [rows, streams, columns].
        pdl: the launch may start early; needs sm_90.

    Raises:
        ValueError: shapes do not belong together.
    """
    rows, streams, hidden = x.shape
    table.check("embed")
    check_tensor("embed: tokens", tokens, (rows,), torch.int32)
    check_tensor("embed: x", x, (rows, streams, table.columns))
    usable, numbers = by_kernel(table, tokens)
    _triton.embed[(rows, -(-hidden // 256))](
        usable.raw, numbers, x, STREAMS=streams, HIDDEN=hidden, BLOCK=256, PDL=pdl, num_warps=2,
        **usable.kind, **launch_options(pdl),
    )  # fmt: skip
