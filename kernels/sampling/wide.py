"""Draws among more candidates than the kernels sort: plain operations without a host wait, a few rows at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.sampling.noise import gumbel, noise_keys
from kernels.sampling.slots import WIDE, SlotRules

_SLICE_VALUES = 1 << 20
_COLDEST = 1e-30


def draw_wide(
    logits: Tensor, rules: SlotRules, *, slot: Tensor, position: Tensor, wanted: Tensor, ids: Tensor, shares: Tensor
) -> None:
    """Replaces ids and probabilities of the rows whose rules are wide; all shapes are static.

    Args:
        logits: float32 [rows, vocabulary], changed by the rules.
        rules: of all slots.
        slot, position, wanted: int32 [rows].
        ids: int32 [rows], replaced.
        shares: float32 [rows], replaced.
    """
    step = max(1, _SLICE_VALUES // logits.shape[1])
    for first in range(0, logits.shape[0], step):
        part = slice(first, first + step)
        own = slot[part].to(torch.int64)
        wide = (rules.wholes[own, 0] == WIDE) & (wanted[part] != 0)
        numbers = rules.numbers[own]
        top_k = rules.wholes[own, 1:2]
        found, share = _draw(logits[part], numbers, top_k, noise_keys(rules.seeds[own], position[part]))
        ids[part] = torch.where(wide, found, ids[part])
        shares[part] = torch.where(wide, share, shares[part])


def _draw(logits: Tensor, numbers: Tensor, top_k: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """As `kernels.sampling.op` draws: sorted by value and id, cut by top_k, top_p and min_p, then noise."""
    temperature, top_p, min_p = (numbers[:, i : i + 1] for i in range(3))
    temperature = torch.where(temperature > 0, temperature, 1.0)
    values, order = logits.sort(dim=1, descending=True, stable=True)
    top = values[:, :1]
    scaled = (values.to(torch.float64) - top).div_(temperature)
    rank = torch.arange(values.shape[1], device=values.device)
    scaled.masked_fill_(rank >= top_k, -torch.inf)
    weights = scaled.exp()
    summed = weights.cumsum(1)
    cold = temperature.clamp(min=_COLDEST).to(torch.float32)
    everything = (logits - top).div_(cold).exp_().sum(1, keepdim=True, dtype=torch.float64)
    mass = torch.where(top_k < values.shape[1], summed[:, -1:], everything)
    before = torch.cat((torch.zeros_like(summed[:, :1]), summed[:, :-1]), 1)
    kept = weights * (before < top_p * mass) * (weights >= min_p)
    noisy = gumbel(keys, order).add_(scaled).masked_fill_(kept == 0, -torch.inf)
    place = noisy.argmax(1, keepdim=True)
    share = kept.gather(1, place) / kept.sum(1, keepdim=True)
    return order.gather(1, place).squeeze(1).to(torch.int32), share.squeeze(1).to(torch.float32)
