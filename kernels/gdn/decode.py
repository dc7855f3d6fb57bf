"""Gated DeltaNet of a decode window on the device: state by position, so that a rejected draft needs no restoring."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kernels.gdn import _triton
from kernels.planes import operand_columns
from kernels.terms import check_operand, check_tensor, check_terms, launch_options
from kernels.window import RING_POSITIONS, WindowRows

MOST_TAPS = 4
MOST_TERMS = 16
# Two heads then fit the registers of one processor; with eight warps it is one, and windows of many rows are slower.
MOST_WARPS = 4
MOST_DRAFTS = 4
"""Drafts of a span, and so rows that a window replays."""

SHORT_ROWS = RING_POSITIONS - MOST_DRAFTS
"""Rows of a window whose spans end before they reach, in the rings, what a replay or a convolution still reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaWeights:
    """Weights of one layer beside its products; all float32.

    Attributes:
        conv: [taps, (2 * key_heads + heads) * dim]; the last tap multiplies the newest row.
        rate: [heads], -exp(A).
        bias: [heads], of the time step.
        norm: [dim].
    """

    conv: torch.Tensor
    rate: torch.Tensor
    bias: torch.Tensor
    norm: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaState:
    """State of one layer for every slot, and one dummy slot last. A slot at position 0 has no past: nothing is cleared.

    Rings hold position p at p % 16. The journal keeps what draft rows did to the state until it is known whether they
    stay: the next window starts at some position and replays the rows from `at` to there.

    Attributes:
        delta: float32 [slots + 1, heads, dim (key), dim (value)].
        at: int32 [slots + 1, heads], tokens that `delta` includes; each head has its own, as none waits for another.
        conv: float32 [slots + 1, 16, channels], raw inputs of the convolution.
        key: float32 [slots + 1, 16, key_heads, dim].
        value: float32 [slots + 1, 16, heads, dim].
        decay: float32 [slots + 1, 16, heads].
        strength: float32 [slots + 1, 16, heads], beta.
    """

    delta: torch.Tensor
    at: torch.Tensor
    conv: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    decay: torch.Tensor
    strength: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaBuffers:
    """What the two launches of a long window hand on; may be shared by all layers. float32, R rows.

    Attributes:
        key: [R, key_heads, dim].
        value: [R, heads, dim].
        decay: [R, heads]. strength: the same.
    """

    key: torch.Tensor
    value: torch.Tensor
    decay: torch.Tensor
    strength: torch.Tensor


def new_state(
    slots: int, *, key_heads: int, heads: int, dim: int, device: torch.device | str, layers: int = 1
) -> tuple[DeltaState, ...]:
    """Zero state of `layers` layers for `slots` slots and the dummy; one allocation a field."""
    count, ring = slots + 1, RING_POSITIONS
    delta = torch.zeros(layers, count, heads, dim, dim, device=device)
    at = torch.zeros(layers, count, heads, dtype=torch.int32, device=device)
    conv = torch.zeros(layers, count, ring, (2 * key_heads + heads) * dim, device=device)
    key = torch.zeros(layers, count, ring, key_heads, dim, device=device)
    value = torch.zeros(layers, count, ring, heads, dim, device=device)
    decay = torch.zeros(layers, count, ring, heads, device=device)
    strength = torch.zeros_like(decay)
    return tuple(
        DeltaState(
            delta=delta[i],
            at=at[i],
            conv=conv[i],
            key=key[i],
            value=value[i],
            decay=decay[i],
            strength=strength[i],
        )
        for i in range(layers)
    )


def new_buffers(rows: int, *, key_heads: int, heads: int, dim: int, device: torch.device | str) -> DeltaBuffers:
    """Buffers of a bucket of `rows` rows, not initialised."""

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(rows, *shape, device=device)

    return DeltaBuffers(key=empty(key_heads, dim), value=empty(heads, dim), decay=empty(heads), strength=empty(heads))


def run_delta(
    *,
    qkv: torch.Tensor,
    gate: torch.Tensor,
    alpha: torch.Tensor,
    beta: torch.Tensor,
    rows: WindowRows,
    weights: DeltaWeights,
    state: DeltaState,
    buffers: DeltaBuffers,
    operand: torch.Tensor,
    eps: float,
    exact: bool,
    pdl: bool,
) -> None:
    """Runs the mixer between its two products, in one launch or two, and updates the state in place.

    Per row: `c = silu(conv(qkv))`, split in q, k, v; unit q / sqrt(dim) and k; `a = exp(rate softplus(alpha + bias))`,
    `S <- a S + k (sigmoid(beta) (v - a S'k))'`, `o = S'q`, `y = rms(o) norm sigmoid(gate)`; value head t uses key head
    t mod key_heads. The state is stored after the certain rows of each span; its draft rows go to the journal.

    Args:
        qkv: partial results [terms, R, (2 * key_heads + heads) * dim]: queries, keys, values.
        gate: partial results [terms, R, heads * dim].
        alpha: partial results [terms, R, heads].
        beta: the same.
        rows: where the rows belong; spans of any length, with at most 4 drafts each.
        weights: of the layer.
        state: of the layer.
        buffers: of the bucket.
        operand: receives operand rows [R, operand_columns(heads * dim)]; those of padding rows stay as they are.
        eps: of the gated norm.
        exact: operand rows are float32 in natural order.
        pdl: launches may start early; needs sm_90.

    Raises:
        ValueError: shapes do not belong together.
    """
    capacity = rows.rows
    _, heads, dim = buffers.value.shape
    key_heads = buffers.key.shape[1]
    taps = weights.conv.shape[0]
    _check(qkv, gate, alpha, beta, rows=capacity, weights=weights, state=state, buffers=buffers)
    check_operand("run_delta: operand", operand, rows=capacity, inputs=heads * dim, exact=exact)
    block = triton.next_power_of_2(dim)
    shape = {
        "QKV_TERMS": qkv.shape[0], "KEY_HEADS": key_heads, "HEADS": heads, "DIM": dim, "BLOCK": block, "TAPS": taps,
        "RING": RING_POSITIONS, "PDL": pdl, **launch_options(pdl),
    }  # fmt: skip
    made = (buffers.key, buffers.value, buffers.decay, buffers.strength)
    journal = (state.conv, state.key, state.value, state.decay, state.strength)
    short = capacity <= SHORT_ROWS
    _triton.mix[(capacity * heads,)](
        qkv, gate, alpha, beta, weights.conv, weights.rate, weights.bias, weights.norm, state.delta, state.at, *journal,
        rows.span_slot, rows.span_first, rows.span_count, rows.span_start, rows.span_certain, *made, operand,
        qkv.stride(0), qkv.stride(1), gate.stride(0), gate.stride(1), alpha.stride(0), alpha.stride(1),
        beta.stride(0), beta.stride(1), dim**-0.5, eps,
        GATE_TERMS=gate.shape[0], ALPHA_TERMS=alpha.shape[0], BETA_TERMS=beta.shape[0],
        PADDED=operand_columns(heads * dim), KEEP=short, EXACT=exact,
        num_warps=max(1, min(MOST_WARPS, block * block // 4096)), **shape,
    )  # fmt: skip
    if not short:
        _triton.keep[(capacity, 2 * key_heads + heads)](
            qkv, *made, rows.slot, rows.position, rows.span, rows.span_first, rows.span_certain, rows.rows_used,
            *journal, state.at, qkv.stride(0), qkv.stride(1), num_warps=1, **shape,
        )  # fmt: skip


def _check(
    qkv: torch.Tensor,
    gate: torch.Tensor,
    alpha: torch.Tensor,
    beta: torch.Tensor,
    *,
    rows: int,
    weights: DeltaWeights,
    state: DeltaState,
    buffers: DeltaBuffers,
) -> None:
    _, heads, dim = buffers.value.shape
    key_heads, (taps, channels) = buffers.key.shape[1], weights.conv.shape
    if heads % key_heads or channels != (2 * key_heads + heads) * dim or taps > MOST_TAPS:
        raise ValueError(
            f"run_delta: a convolution of {taps} taps over {channels} channels is not for {key_heads} key heads and "
            f"{heads} value heads of {dim}; value heads are a multiple of key heads, taps at most {MOST_TAPS}"
        )
    check_terms("run_delta: qkv", qkv, rows=rows, width=channels)
    check_terms("run_delta: gate", gate, rows=rows, width=heads * dim)
    check_terms("run_delta: alpha", alpha, rows=rows, width=heads)
    check_terms("run_delta: beta", beta, rows=rows, width=heads)
    if max(alpha.shape[0], beta.shape[0]) > MOST_TERMS:
        raise ValueError(f"run_delta: alpha and beta have up to {MOST_TERMS} terms, found {alpha.shape[0]}")
    slots, ring = state.delta.shape[0], RING_POSITIONS
    check_tensor("run_delta: conv weight", weights.conv, (taps, channels))
    check_tensor("run_delta: delta", state.delta, (slots, heads, dim, dim))
    check_tensor("run_delta: delta position", state.at, (slots, heads), torch.int32)
    check_tensor("run_delta: conv ring", state.conv, (slots, ring, channels))
    check_tensor("run_delta: key journal", state.key, (slots, ring, key_heads, dim))
    check_tensor("run_delta: value journal", state.value, (slots, ring, heads, dim))
    check_tensor("run_delta: decay journal", state.decay, (slots, ring, heads))
    check_tensor("run_delta: strength journal", state.strength, (slots, ring, heads))
