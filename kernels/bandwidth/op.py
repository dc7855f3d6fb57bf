"""Launches the reading kernel over device memory or pinned RAM."""

from __future__ import annotations

import torch

BLOCK = 1024
PER_PROGRAM = 16


def read_in_place(words: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Reads every word once, where it lies.

    Args:
        words: int32 [n], contiguous: on the card, or in pinned RAM, whose address the card shares.
        out: int32 [ceil(n / 16384)] on the card; made when absent.

    Returns:
        Partial sums, int32, wrapping; their sum is that of the words.

    Raises:
        ValueError: another type, not contiguous, or RAM that is not pinned.
    """
    from kernels.bandwidth._triton import sum_words

    if words.dtype != torch.int32 or not words.is_contiguous():
        raise ValueError(f"read_in_place wants contiguous int32 words, found {words.dtype}")
    cuda = torch.cuda.is_available()
    if cuda and not words.is_cuda and not words.is_pinned():
        raise ValueError("read_in_place on a card wants memory on the card, or pinned RAM")
    programs = -(-words.numel() // (BLOCK * PER_PROGRAM))
    if out is None:
        device = words.device if words.is_cuda or not cuda else torch.device("cuda", torch.cuda.current_device())
        out = torch.empty(programs, dtype=torch.int32, device=device)
    if programs:
        sum_words[(programs,)](words, out, words.numel(), PER_PROGRAM=PER_PROGRAM, BLOCK=BLOCK)
    return out
