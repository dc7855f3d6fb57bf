"""Draws one token per row of logits, each row by its own rules; and log-probabilities of the unmodified rows."""

from __future__ import annotations

from kernels.sampling.logprobs import LogProbabilities, log_probabilities
from kernels.sampling.op import Choice, choose
from kernels.sampling.params import RowParams, build
from kernels.sampling.rows import Row, Rules

__all__ = ["Choice", "LogProbabilities", "Row", "RowParams", "Rules", "build", "choose", "log_probabilities"]
