"""Weights of one layer on a device: planes for products, float32 for the rest."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from appliance.model.qwen4exp.device.experts import LayerExperts
from appliance.model.qwen4exp.device.product import Product, joined, product_of
from appliance.model.qwen4exp.device.source import Source
from appliance.model.qwen4exp.spec import ModelSpec
from kernels.gdn.decode import DeltaWeights
from kernels.hyper.decode import ReadPlanes
from kernels.planes import Planes


@dataclass(frozen=True, slots=True, kw_only=True)
class GdnPlanes:
    """Gated DeltaNet: products "qkv", "gate", "alpha", "beta"; the rest; the product out."""

    inputs: Product
    delta: DeltaWeights
    out: Product


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlanes:
    """Full attention: products "query" (queries and gates by head), "key", "value", "index_query", "index_key".

    Attributes:
        inputs: the products; the draft layer has no indexer.
        query_norm, key_norm: float32 [head dim].
        index_query_norm, index_key_norm: float32 [indexer dim]; None without an indexer.
        out: the product out.
    """

    inputs: Product
    query_norm: torch.Tensor
    key_norm: torch.Tensor
    index_query_norm: torch.Tensor | None
    index_key_norm: torch.Tensor | None
    out: Product


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlanes:
    """One block."""

    mixer_read: ReadPlanes
    mixer: GdnPlanes | AttentionPlanes
    moe_read: ReadPlanes
    experts: LayerExperts


def read_planes(source: Source, prefix: str, spec: ModelSpec, *, inject: bool) -> ReadPlanes:
    """Weights of a hyper-connection read (`{prefix}_norm.weight` and so on)."""
    wide = spec.streams * spec.hidden
    return ReadPlanes(
        norm=source.floats(f"{prefix}_norm.weight").reshape(spec.streams, spec.hidden),
        down=source.planes(f"{prefix}_down.weight"),
        up=source.planes(f"{prefix}_up.weight"),
        inject=source.floats(f"{prefix}_inject.weight").reshape(spec.streams, wide) if inject else None,
    )


def gdn_planes(source: Source, block: str) -> GdnPlanes:
    """Weights of a linear layer."""
    names = {"qkv": "attn_qkv", "gate": "attn_gate", "alpha": "ssm_alpha", "beta": "ssm_beta"}
    return GdnPlanes(
        inputs=product_of(source, {part: f"{block}.{name}.weight" for part, name in names.items()}),
        delta=DeltaWeights(
            conv=source.floats(f"{block}.ssm_conv1d.weight").t().contiguous(),
            rate=source.floats(f"{block}.ssm_a").reshape(-1),
            bias=source.floats(f"{block}.ssm_dt.bias").reshape(-1),
            norm=source.floats(f"{block}.ssm_norm.weight").reshape(-1),
        ),
        out=product_of(source, {"out": f"{block}.ssm_out.weight"}),
    )


def attention_planes(source: Source, block: str, *, indexer: bool) -> AttentionPlanes:
    """Weights of a full-attention layer."""
    names = {"query": "attn_q", "key": "attn_k", "value": "attn_v"}
    if indexer:
        names |= {"index_query": "indexer.q_proj", "index_key": "indexer.k_proj"}

    def norm(name: str) -> torch.Tensor:
        return source.floats(f"{block}.{name}.weight").reshape(-1)

    return AttentionPlanes(
        inputs=product_of(source, {part: f"{block}.{name}.weight" for part, name in names.items()}),
        query_norm=norm("attn_q_norm"),
        key_norm=norm("attn_k_norm"),
        index_query_norm=norm("indexer.q_norm") if indexer else None,
        index_key_norm=norm("indexer.k_norm") if indexer else None,
        out=product_of(source, {"out": f"{block}.attn_output.weight"}),
    )


def single(planes: Planes, name: str = "out") -> Product:
    """A product of one matrix."""
    return joined([[(name, planes)]])
