"""Owns how kernels are tested: on a card where there is one, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from tests.builders.interpreter import prepare

prepare()

# Of the interpreter itself.
collect_ignore = ["test_strict.py"] if torch.cuda.is_available() else []


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
