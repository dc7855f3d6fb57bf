"""Log-probabilities of the unmodified distribution: of the chosen tokens and of the likeliest ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.sampling.order import largest


@dataclass(frozen=True, slots=True)
class LogProbabilities:
    """Natural logarithms.

    Attributes:
        chosen: float32 [rows].
        top_ids: int64 [rows, n], likeliest first, n the largest number asked for; a row uses its first ones.
        top: float32 [rows, n].
    """

    chosen: Tensor
    top_ids: Tensor
    top: Tensor


def log_probabilities(logits: Tensor, ids: Tensor, *, top_counts: Sequence[int]) -> LogProbabilities:
    """Log-softmax of the rows at the chosen ids and at the likeliest ids.

    Args:
        logits: float32 [rows, vocabulary], as the model gave them.
        ids: int64 [rows], the chosen tokens.
        top_counts: for each row how many of the likeliest tokens are wanted, 0 for none.

    Raises:
        ValueError: shapes that do not fit.
    """
    rows, vocabulary = logits.shape
    if ids.shape != (rows,) or len(top_counts) != rows:
        raise ValueError(
            f"{rows} rows of logits need as many ids and counts, found {list(ids.shape)}, {len(top_counts)}"
        )
    normaliser = logits.logsumexp(1, keepdim=True)
    chosen = logits.gather(1, ids[:, None]).sub_(normaliser).squeeze(1)
    wanted = min(vocabulary, max(top_counts, default=0))
    if wanted == 0:
        empty = torch.empty((rows, 0), device=logits.device)
        return LogProbabilities(chosen, empty.to(torch.int64), empty)
    values, top_ids = largest(logits, wanted)
    return LogProbabilities(chosen, top_ids, values - normaliser)
