"""Compiled scalars against double precision, bf16 against torch, and where compiled code is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.compiled.jit import compiled
from kernels.compiled.scalar import dot, exp, norm_into, sigmoid, silu
from kernels.compiled.vector import narrow, widen
from kernels.norm import reference as norm_reference

ODD = np.array([0.0, -0.0, 1e-30, -87.0, 88.0, -1e30, 1e30, np.inf, -np.inf], np.float32)
SPREAD = np.concatenate((np.linspace(-90, 90, 20001, dtype=np.float32), ODD))


@compiled
def all_of(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(x.shape[0]):
        out[0, i] = exp(x[i])
        out[1, i] = sigmoid(x[i])
        out[2, i] = silu(x[i])


def test_exponentials_are_those_of_double_precision() -> None:
    found = np.full((3, SPREAD.size), np.nan, np.float32)
    all_of(SPREAD, found)
    exact = np.clip(SPREAD.astype(np.float64), -87, 88)
    finite = np.isfinite(SPREAD) & (np.abs(SPREAD) < 1e20)
    assert np.abs(found[0] / np.exp(exact) - 1).max() <= 2e-7
    assert np.abs(found[1] - 1 / (1 + np.exp(-exact))).max() <= 2e-7
    assert np.abs(found[2][finite] - (SPREAD / (1 + np.exp(-exact)))[finite]).max() <= 1e-5


def test_nan_stays_nan() -> None:
    found = np.zeros((3, 20), np.float32)
    all_of(np.full(20, np.nan, np.float32), found)
    assert np.isnan(found).all()


@compiled
def there_and_back(x: np.ndarray, stored: np.ndarray, back: np.ndarray) -> None:
    for i in range(x.shape[0]):
        stored[i] = narrow(x[i], stored[i])
        back[i] = widen(stored[i])


def test_bf16_is_torchs() -> None:
    ties = np.array([0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    x = np.concatenate((np.random.default_rng(1).standard_normal(500).astype(np.float32), ties, ODD))
    stored, back = np.zeros(x.size, np.int16), np.full(x.size, 7, np.float32)
    there_and_back(x, stored, back)
    wanted = torch.from_numpy(x).to(torch.bfloat16).to(torch.float32).numpy()
    assert np.array_equal(back, wanted, equal_nan=True)
    floats = np.zeros(x.size, np.float32)
    there_and_back(x, floats, back)
    assert np.array_equal(back, x, equal_nan=True)


@pytest.mark.parametrize("width", [1, 7, 64, 100])
def test_norms_and_products(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    x, weight = torch.randn(width, generator=generator), torch.rand(width, generator=generator)
    out = np.full(width, np.nan, np.float32)
    norm_into(out, x.numpy(), weight.numpy(), np.float32(1e-6))
    assert np.allclose(out, norm_reference.rms_norm(x[None], weight, eps=1e-6)[0].numpy(), rtol=1e-5, atol=1e-6)
    assert np.isclose(dot(x.numpy(), weight.numpy()), float(x.double() @ weight.double()), rtol=1e-5, atol=1e-5)


PROGRAM = """
import numpy, sys
from kernels.compiled.scalar import dot
print(dot(numpy.ones(5, numpy.float32), numpy.ones(5, numpy.float32)), dot.stats.cache_hits[next(iter(dot.signatures))]
      if dot.stats.cache_hits else 0)
"""


def run(folder: Path, home: Path) -> str:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "HOME": str(home)}
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_compiled_code_is_kept_for_the_next_start(tmp_path: Path) -> None:
    assert run(tmp_path / "kept", tmp_path) == "5.0 0"
    assert run(tmp_path / "kept", tmp_path) == "5.0 1"


def test_a_folder_that_cannot_be_written_costs_the_compilation_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert run(tmp_path / "file", tmp_path) == "5.0 0"
