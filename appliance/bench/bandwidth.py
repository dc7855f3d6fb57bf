"""What memory gives to a plain read, measured in the same run as what is compared with it."""

from __future__ import annotations

import time

import torch

_CARD_BYTES, _CPU_BYTES = 1 << 30, 1 << 28
_REPEATS = 10


def measured_bandwidth(device: torch.device) -> float:
    """GB/s of summing float32 numbers, 1 GiB on a card and 256 MiB on the CPU: the best of ten."""
    cuda = device.type == "cuda"
    data = torch.ones((_CARD_BYTES if cuda else _CPU_BYTES) // 4, device=device)
    best = 0.0
    for _ in range(_REPEATS):
        if cuda:
            torch.cuda.synchronize(device)
        began_s = time.perf_counter()
        data.sum()
        if cuda:
            torch.cuda.synchronize(device)
        best = max(best, data.nbytes / (time.perf_counter() - began_s) / 1e9)
    return best
