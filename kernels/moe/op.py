"""Batched mixture of experts in plain torch."""

from __future__ import annotations

from collections.abc import Callable

import torch

# From here on, one padded product over all experts beats a loop over the touched ones.
LOOP_PAIRS = 0
PADDED_WASTE = 6


def route(logits: torch.Tensor, *, used: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Chooses experts. Renormalised shares of a softmax are the softmax of the chosen logits.

    Args:
        logits: float32 [rows, experts].
        used: experts of a row.

    Returns:
        Expert ids int64 [rows, used], best first, and their weights float32 [rows, used].

    Raises:
        ValueError: more experts wanted than there are.
    """
    if used > logits.shape[1]:
        raise ValueError(f"route: {used} experts wanted of {logits.shape[1]}")
    best, ids = logits.topk(used, dim=1)
    return ids, torch.softmax(best, 1)


def run_experts(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """`sum over chosen e of w_e down_e(silu(gate_e x) * up_e x)`.

    Args:
        x: float32 [rows, hidden].
        ids: int64 [rows, used].
        weights: float32 [rows, used].
        gate_up: float32 [experts, hidden, 2 * ff]: gate columns, then up columns.
        down: float32 [experts, ff, hidden].

    Returns:
        float32 [rows, hidden].
    """
    rows, used = ids.shape
    experts, ff, hidden = down.shape
    if rows == 0:
        return torch.zeros_like(x)
    flat = ids.reshape(-1)
    # One hot counts give each pair its place among its expert's rows without leaving the device.
    hot = torch.nn.functional.one_hot(flat, experts)
    ranks = hot.cumsum(0)
    place = ranks.gather(1, flat.unsqueeze(1)).squeeze(1).sub_(1)
    busiest = int(ranks[-1].max()) if x.device.type == "cpu" else rows
    if busiest * experts > PADDED_WASTE * rows * used and busiest > 16:
        return run_fetched(x, ids, weights, lambda expert: (gate_up[expert], down[expert]))
    slot = flat * busiest + place
    padded = x.new_zeros(experts * busiest, hidden)
    padded.index_copy_(0, slot, x.unsqueeze(1).expand(rows, used, hidden).reshape(rows * used, hidden))
    both = torch.bmm(padded.view(experts, busiest, hidden), gate_up)
    inner = torch.nn.functional.silu(both[:, :, :ff]).mul_(both[:, :, ff:])
    results = torch.bmm(inner, down).view(experts * busiest, hidden).index_select(0, slot)
    return torch.bmm(weights.unsqueeze(1), results.view(rows, used, hidden)).squeeze(1)


def run_fetched(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    fetch: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
) -> torch.Tensor:
    """The same, one touched expert after the other; `fetch` brings its gate_up [hidden, 2 * ff] and down [ff, hidden].

    Host side: the expert ids are read back, so this is for a CPU or for weights that are not in device memory.
    """
    rows, used = ids.shape
    results = x.new_empty(rows * used, x.shape[1])
    order = ids.reshape(-1).argsort(stable=True)
    touched, counts = torch.unique_consecutive(ids.reshape(-1)[order], return_counts=True)
    first = 0
    for expert, count in zip(touched.tolist(), counts.tolist(), strict=True):
        pairs = order[first : first + count]
        gate_up, down = fetch(expert)
        both = x.index_select(0, pairs // used) @ gate_up
        ff = down.shape[0]
        inner = torch.nn.functional.silu(both[:, :ff]).mul_(both[:, ff:])
        results.index_copy_(0, pairs, inner @ down)
        first += count
    return torch.bmm(weights.unsqueeze(1), results.view(rows, used, x.shape[1])).squeeze(1)
