"""Partial results that products leave behind, and the operand rows that they read: shapes, checks, launch options."""

from __future__ import annotations

import torch

from kernels.planes import operand_columns


def operand_rows(rows: int, inputs: int, *, exact: bool, device: torch.device | str) -> torch.Tensor:
    """New operand rows, zero: fp16 (permuted) or, exact, float32 [rows, operand_columns(inputs)]."""
    dtype = torch.float32 if exact else torch.float16
    return torch.zeros(rows, operand_columns(inputs), dtype=dtype, device=device)


def check_operand(name: str, operand: torch.Tensor, *, rows: int, inputs: int, exact: bool) -> None:
    """Refuses operand rows of another shape or kind.

    Raises:
        ValueError: not contiguous [rows, operand_columns(inputs)] of fp16, or float32 when exact.
    """
    dtype = torch.float32 if exact else torch.float16
    shape = (rows, operand_columns(inputs))
    if operand.dtype != dtype or operand.shape != shape or not operand.is_contiguous():
        raise ValueError(f"{name} is {dtype} {list(shape)}, contiguous, found {operand.dtype} {list(operand.shape)}")


def check_terms(name: str, values: torch.Tensor, *, rows: int, width: int) -> None:
    """Refuses partial results of another shape.

    Args:
        name: of the argument, for the message.
        values: float32 [terms, rows, width]; any strides but the last, which is 1 (a view of columns is allowed).
        rows: expected.
        width: expected.

    Raises:
        ValueError: another dtype, shape or stride.
    """
    if values.dtype != torch.float32 or values.dim() != 3 or values.shape[0] < 1:
        raise ValueError(f"{name} is float32 [terms, rows, width], found {values.dtype} {list(values.shape)}")
    if values.shape[1:] != (rows, width) or values.stride(2) != 1:
        raise ValueError(
            f"{name} has {rows} rows of {width} values, found {list(values.shape)} of strides {values.stride()}"
        )


def check_rows(name: str, values: torch.Tensor, *, rows: int, width: int) -> None:
    """Refuses rows that a kernel over many rows cannot read.

    Args:
        name: of the argument, for the message.
        values: fp16 or float32 [rows, width]; any stride but the last, which is 1.
        rows: expected.
        width: expected.

    Raises:
        ValueError: another dtype, shape or stride.
    """
    if values.dtype not in (torch.float16, torch.float32) or values.shape != (rows, width) or values.stride(1) != 1:
        raise ValueError(
            f"{name} is fp16 or float32 [{rows}, {width}] of adjacent values, "
            f"found {values.dtype} {list(values.shape)} with strides {values.stride()}"
        )


def check_tensor(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
    """Refuses a tensor of another shape, dtype, or memory order.

    Raises:
        ValueError: not a contiguous tensor of that shape and dtype.
    """
    if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous():
        raise ValueError(
            f"{name} is {dtype} {list(shape)}, contiguous, found {tensor.dtype} {list(tensor.shape)}"
            f"{'' if tensor.is_contiguous() else ', not contiguous'}"
        )


def launch_options(pdl: bool) -> dict[str, bool]:
    """Keyword arguments of a launch that may start before the one before it is done."""
    return {"launch_pdl": True} if pdl else {}
