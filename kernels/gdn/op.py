"""Batched Gated DeltaNet in plain torch: the chunked (WY) form, exact for every prefix of the window's rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from kernels.norm import rms_norm

CHUNK_ROWS = 64


@dataclass(frozen=True, slots=True)
class DeltaRows:
    """What a window of rows does to the state; row j depends on rows up to j only.

    Attributes:
        key: float32 [batch, key_heads, length, dim].
        update: float32 [batch, heads, length, dim]: `U_j = beta_j (v_j - a_j S_{j-1}' k_j)`.
        decay: float64 [batch, heads, length]: cumulative log decay since the state before the window.
    """

    key: torch.Tensor
    update: torch.Tensor
    decay: torch.Tensor


def causal_conv(rows: torch.Tensor, weight: torch.Tensor, *, dilation: int = 1) -> torch.Tensor:
    """Depthwise causal convolution and silu.

    Args:
        rows: float32 [batch, (taps - 1) * dilation + length, channels]: history, then the window's rows.
        weight: float32 [taps, channels]; the last tap multiplies the newest row.
        dilation: rows between two taps.

    Returns:
        float32 [batch, length, channels].

    Raises:
        ValueError: fewer rows than the history, or other channels.
    """
    taps = weight.shape[0]
    length = rows.shape[1] - (taps - 1) * dilation
    if length < 0 or rows.shape[2] != weight.shape[1]:
        raise ValueError(f"causal_conv: rows {tuple(rows.shape)} do not fit a weight of {tuple(weight.shape)}")
    out = rows[:, :length] * weight[0]
    for tap in range(1, taps):
        out.addcmul_(rows[:, tap * dilation : tap * dilation + length], weight[tap])
    return torch.nn.functional.silu(out, inplace=True)


def unit_keys(queries_keys: torch.Tensor, *, key_heads: int, eps: float = 1e-6) -> torch.Tensor:
    """Scales queries and keys to unit length, eps added to the sum of squares, in place; queries also by 1/sqrt(dim).

    Args:
        queries_keys: float32 [batch, length, 2 * key_heads, dim]: queries, then keys.
        key_heads: heads of each.

    Returns:
        The argument.
    """
    length: torch.Tensor = torch.linalg.vector_norm(queries_keys, dim=-1, keepdim=True)
    scale = length.square_().add_(eps).rsqrt_()
    scale[:, :, :key_heads].mul_(queries_keys.shape[-1] ** -0.5)
    return queries_keys.mul_(scale)


def delta_rule(
    queries_keys: torch.Tensor, value: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, DeltaRows]:
    """Runs the gated delta rule over a window without changing the state.

    With cumulative log decays G: `(I + A) U = beta (V - e^G K S0)`, A strictly lower, `A_ij = beta_i e^(G_i - G_j)
    k_i.k_j`; `o_i = e^(G_i) q_i S0 + sum_(j<=i) e^(G_i - G_j) (q_i.k_j) U_j`. Long windows go in chunks.

    Args:
        queries_keys: float32 [batch, length, 2 * key_heads, dim] from `unit_keys`.
        value: float32 [batch, length, heads, dim]; value head v uses key head v mod key_heads.
        log_decay: float32 [batch, length, heads], never positive.
        beta: float32 [batch, length, heads].
        state: float32 [batch, heads, dim (key), dim (value)].

    Returns:
        Outputs [batch, length, heads, dim], and what `commit_state` needs.

    Raises:
        ValueError: heads are not a multiple of the key heads.
    """
    batch, length, heads, _ = value.shape
    key_heads = queries_keys.shape[2] // 2
    if key_heads == 0 or heads % key_heads:
        raise ValueError(f"delta_rule: {heads} value heads are not a multiple of {key_heads} key heads")
    both = queries_keys.permute(0, 2, 1, 3)
    query, key = both[:, :key_heads], both[:, key_heads:]
    values, betas = value.permute(0, 2, 1, 3), beta.permute(0, 2, 1)
    cumulative = log_decay.permute(0, 2, 1).to(torch.float64).cumsum(2)
    if length <= CHUNK_ROWS:
        out, update = _chunk(query, key, values, cumulative, betas, state)
        return out.permute(0, 2, 1, 3), DeltaRows(key, update, cumulative)
    outs, updates = [], []
    before = torch.zeros_like(cumulative[:, :, :1])
    for first in range(0, length, CHUNK_ROWS):
        part = slice(first, min(first + CHUNK_ROWS, length))
        local = cumulative[:, :, part] - before
        out, update = _chunk(query[:, :, part], key[:, :, part], values[:, :, part], local, betas[:, :, part], state)
        rows = DeltaRows(key[:, :, part], update, local)
        state = commit_state(state, rows, torch.full((batch,), out.shape[2], device=state.device))
        before = cumulative[:, :, part.stop - 1 : part.stop]
        outs.append(out)
        updates.append(update)
    return torch.cat(outs, 2).permute(0, 2, 1, 3), DeltaRows(key, torch.cat(updates, 2), cumulative)


def _chunk(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and updates of up to CHUNK_ROWS rows; all head-major [batch, heads, length, ...]."""
    batch, heads, length, dim = value.shape
    key_heads = key.shape[1]
    repeat = heads // key_heads
    both = torch.cat((key, query), 2).view(batch, 1, key_heads, 2 * length, dim)
    products = torch.matmul(both, key.transpose(2, 3).unsqueeze(1))
    read = torch.matmul(both, state.view(batch, repeat, key_heads, dim, dim)).view(batch, heads, 2, length, dim)
    # Differences of float64 sums: a large decay early in the chunk must not blur small ones after it.
    ratio = (decay.unsqueeze(3) - decay.unsqueeze(2)).add_(_above(length, decay.device)).exp_().to(torch.float32)
    weights = ratio.view(batch, repeat, key_heads, 1, length, length) * products.view(
        batch, 1, key_heads, 2, length, length
    )
    weights = weights.view(batch, heads, 2, length, length)
    read = read.mul_(decay.exp().to(torch.float32).view(batch, heads, 1, length, 1))
    wanted = (value - read[:, :, 0]).mul_(beta.unsqueeze(3))
    system = weights[:, :, 0] * beta.unsqueeze(3)
    update = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    out = torch.matmul(weights[:, :, 1], update).add_(read[:, :, 1])
    return out, update


@lru_cache(maxsize=CHUNK_ROWS + 8)
def _above(length: int, device: torch.device) -> torch.Tensor:
    """-inf above the diagonal, 0 elsewhere; what it is added to becomes 0 as a power."""
    return torch.full((length, length), float("-inf"), dtype=torch.float64, device=device).triu_(1)


def commit_state(state: torch.Tensor, rows: DeltaRows, kept: torch.Tensor) -> torch.Tensor:
    """The state after the first `kept` rows: `e^(G_n) S0 + sum_(j<=n) e^(G_n - G_j) k_j U_j'`.

    Args:
        state: float32 [batch, heads, dim, dim] before the window.
        rows: from `delta_rule`.
        kept: int64 [batch], 0 to length; 0 keeps the state.

    Returns:
        A new tensor like state.
    """
    batch, heads, length = rows.decay.shape
    key_heads, dim = rows.key.shape[1], rows.key.shape[3]
    repeat = heads // key_heads
    if length == 0:
        return state.clone()
    last = (kept - 1).clamp(min=0).view(batch, 1, 1).expand(batch, heads, 1)
    total = rows.decay.gather(2, last)
    nothing = (kept == 0).view(batch, 1, 1)
    total = total.masked_fill(nothing, 0.0)
    index = torch.arange(length, device=state.device)
    dropped = index.view(1, 1, length) >= kept.view(batch, 1, 1)
    share = (total - rows.decay).masked_fill(dropped, float("-inf")).exp_().to(torch.float32)
    # A dropped row may hold anything; it must not reach the state even as 0 * inf.
    update = rows.update.masked_fill(dropped.unsqueeze(3), 0.0).mul_(share.unsqueeze(3))
    keys = rows.key.masked_fill(dropped.unsqueeze(3), 0.0).transpose(2, 3)
    added = torch.matmul(keys.unsqueeze(1), update.view(batch, repeat, key_heads, length, dim))
    scale = total.exp().to(torch.float32).unsqueeze(3)
    return added.view(batch, heads, dim, dim).add_(state * scale)


def gated_norm(out: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """`rms(out) * weight * sigmoid(gate)` per head of `dim` values.

    Args:
        out: float32 [rows, heads, dim].
        gate: float32 [rows, heads, dim].
        weight: float32 [dim].
        eps: added to the mean of squares.
    """
    return rms_norm(out, weight, eps=eps).mul_(gate.sigmoid())
