"""What broke, in one line: libraries write paragraphs, and a lost card looks like any other error; torch-free."""

from __future__ import annotations

from typing import Final

# How torch and Triton begin what the driver told them.
_DRIVER: Final = ("CUDA error", "CUDA driver error", "Triton Error [CUDA]", "NVML")
_FULL: Final = ("OutOfMemoryError",)


def is_card_error(error: BaseException) -> bool:
    """Whether the driver reported it: the card is lost, or what it holds cannot be trusted any more."""
    return not is_card_full(error) and any(mark in str(error) for mark in _DRIVER)


def is_card_full(error: BaseException) -> bool:
    """Whether a card has no memory left."""
    return type(error).__name__ in _FULL or "CUDA error: out of memory" in str(error)


def fault_sentence(error: BaseException) -> str:
    """The error as one sentence for clients and for the log."""
    lines = str(error).strip().splitlines() or [""]
    if is_card_full(error):
        return f"a card has no memory left: {lines[0]}"
    if is_card_error(error):
        return f"a card was lost: {lines[0]}; all it held is gone (`nvidia-smi` and the kernel's log say more)"
    return f"{type(error).__name__}: {lines[0]}"
