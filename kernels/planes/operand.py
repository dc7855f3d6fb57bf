"""Operand rows on the host: what a producer kernel stores with `kernels.device.store_operand`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.planes.format import TILE_COLUMNS


def operand_columns(columns: int) -> int:
    """Inputs an operand row has room for: `columns`, rounded up to 128."""
    return -(-columns // TILE_COLUMNS) * TILE_COLUMNS


def to_operand(x: Tensor, *, exact: bool) -> Tensor:
    """float32 [rows, columns] to operand rows [rows, operand_columns(columns)]: float32 if exact, else fp16."""
    padded = pad(x.to(torch.float32), (0, operand_columns(x.shape[1]) - x.shape[1]))
    if exact:
        return padded.contiguous()
    t = padded.clamp(-65504, 65504).to(torch.float16).reshape(x.shape[0], -1, 2, 4, 2, 2, 4)  # chunk mj b mr h i
    return t.permute(0, 1, 6, 3, 4, 2, 5).reshape(x.shape[0], -1).contiguous()


def from_operand(rows: Tensor, *, columns: int) -> Tensor:
    """The float32 values [rows, columns] of operand rows."""
    if rows.dtype == torch.float32:
        return rows[:, :columns].clone()
    t = rows.reshape(rows.shape[0], -1, 4, 4, 2, 2, 2)  # chunk i b mr mj h
    return t.permute(0, 1, 5, 3, 4, 6, 2).reshape(rows.shape[0], -1)[:, :columns].to(torch.float32)
