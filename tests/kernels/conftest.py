"""Owns how kernels are tested: on a card where there is one, else in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    # Read when a kernel is decorated, so it must be set before one is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
