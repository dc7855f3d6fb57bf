"""What a model may offer that chooses for greedy rows itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch

from appliance.model.interface import LoadedModel

Likeliest = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
"""Of each row of logits the likeliest token (the first of equals), its probability, and whether its sum is a number."""


@runtime_checkable
class GreedyModel(LoadedModel, Protocol):
    """Its `likeliest` is compiled for where it computes."""

    def likeliest(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `Likeliest`."""
        ...
