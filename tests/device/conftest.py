"""Owns how the device model is tested: on a card where there is one, else in Triton's interpreter."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    # Read when a kernel is decorated, so it must be set before one is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")
    torch.set_num_threads(1)

    import dataclasses

    from triton.runtime import interpreter

    # Looking for overflows of integers costs the interpreter most of its time.
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
