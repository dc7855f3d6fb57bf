"""Batched mixture of experts in plain torch."""

from __future__ import annotations

from collections.abc import Callable

import torch

# Up to this many pairs of row and expert, a loop over the touched experts reads less than one padded product over all.
LOOP_PAIRS = 24
# Above this many, a loop is as quick as padding and needs no room for the busiest expert times all experts.
PADDED_PAIRS = 1024


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
    if x.device.type == "cpu" and not LOOP_PAIRS < rows * used <= PADDED_PAIRS:
        return _run_touched(x, ids, weights, gate_up, down)
    experts, ff, hidden = down.shape
    flat = ids.reshape(-1)
    # Counts by one hot sums give each pair its place among its expert's rows without leaving the device.
    ranks = torch.nn.functional.one_hot(flat, experts).cumsum(0)
    place = ranks.gather(1, flat.unsqueeze(1)).squeeze(1).sub_(1)
    # On a card the size must not depend on data: no expert gets more rows than there are.
    busiest = int(ranks[-1].max()) if x.device.type == "cpu" else rows
    slot = flat * busiest + place
    # Places without a pair repeat row 0; what is computed there is never read.
    source = torch.zeros(experts * busiest, dtype=torch.int64, device=x.device)
    source.index_copy_(0, slot, torch.arange(rows * used, device=x.device) // used)
    both = torch.bmm(x.index_select(0, source).view(experts, busiest, hidden), gate_up)
    inner = torch.nn.functional.silu(both[:, :, :ff]).mul_(both[:, :, ff:])
    results = torch.bmm(inner, down).view(experts * busiest, hidden).index_select(0, slot)
    return torch.bmm(weights.unsqueeze(1), results.view(rows, used, hidden)).squeeze(1)


def run_fetched(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    fetch: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
) -> torch.Tensor:
    """The same, one touched expert after the other; no more than one is held at a time.

    Host side: the expert ids are read back, so this is for a CPU, or for weights that are not in device memory.

    Args:
        x: float32 [rows, hidden].
        ids: int64 [rows, used].
        weights: float32 [rows, used].
        fetch: brings an expert's gate_up [hidden, 2 * ff] and down [ff, hidden].

    Returns:
        float32 [rows, hidden].
    """
    rows, used = ids.shape
    if rows == 0:
        return torch.zeros_like(x)
    order, touched, sizes = _by_expert(ids)
    results = x.new_empty(rows * used, x.shape[1])
    parts = torch.split_with_sizes(x.index_select(0, order // used), sizes)
    for expert, part, out in zip(touched, parts, torch.split_with_sizes(results, sizes), strict=True):
        gate_up, down = fetch(expert)
        gate, up = torch.mm(part, gate_up).chunk(2, 1)
        torch.mm(torch.nn.functional.silu(gate).mul_(up), down, out=out)
    return _weigh(results, order, weights)


def _run_touched(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """`run_fetched` over stacked experts: products write into views of whole buffers, the rest is done once."""
    rows, used = ids.shape
    if rows == 0:
        return torch.zeros_like(x)
    order, touched, sizes = _by_expert(ids)
    ff = down.shape[1]
    cut = torch.split_with_sizes
    both, results = x.new_empty(rows * used, 2 * ff), x.new_empty(rows * used, x.shape[1])
    sorted_x = x.index_select(0, order // used)
    for expert, part, out in zip(touched, cut(sorted_x, sizes), cut(both, sizes), strict=True):
        torch.mm(part, gate_up[expert], out=out)
    inner = torch.nn.functional.silu(both[:, :ff]).mul_(both[:, ff:])
    for expert, part, out in zip(touched, cut(inner, sizes), cut(results, sizes), strict=True):
        torch.mm(part, down[expert], out=out)
    return _weigh(results, order, weights)


def _by_expert(ids: torch.Tensor) -> tuple[torch.Tensor, list[int], list[int]]:
    """Order of the pairs by expert, the touched experts, and how many pairs each has."""
    flat = ids.reshape(-1)
    counts = torch.bincount(flat).tolist()
    touched = [expert for expert, count in enumerate(counts) if count]
    return flat.argsort(stable=True), touched, [counts[expert] for expert in touched]


def _weigh(results: torch.Tensor, order: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Results in the order of the experts -> weighted sums of the rows."""
    rows, used = weights.shape
    back = torch.empty_like(results).index_copy_(0, order, results)
    return torch.bmm(weights.unsqueeze(1), back.view(rows, used, results.shape[1])).squeeze(1)
