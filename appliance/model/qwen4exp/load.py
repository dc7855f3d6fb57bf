"""Loads a qwen4exp model where the plan says; what only the other place needs is not imported."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch

from appliance.model.interface import LoadedModel
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.state import KV_TYPES


def load_model(spec: ModelSpec, *, plan: LoadPlan, progress: Callable[[str, int], None]) -> LoadedModel:
    """Loads weights and makes the state, on the CPU or on a card.

    Args:
        spec: of the file.
        plan: sizes and homes.
        progress: gets a sentence and a percentage.

    Raises:
        ValueError: a plan that cannot be: unknown homes or types, pages that cut an indexer block.
    """
    if plan.page_tokens % spec.block_tokens:
        raise ValueError(
            f"page_tokens is {plan.page_tokens}; it must be a multiple of the block of {spec.block_tokens}"
        )
    if torch.device(plan.device).type == "cuda":
        device_module = importlib.import_module("appliance.model.qwen4exp.device.model")
        model: LoadedModel = device_module.load_device_model(spec, plan, progress)
        return model
    if plan.kv_type not in KV_TYPES:
        raise ValueError(
            f"kv type {plan.kv_type!r} is not available in this version; allowed are {', '.join(KV_TYPES)}"
        )
    if plan.unpack not in ("once", "per_use"):
        raise ValueError(f"unpack is {plan.unpack!r}; allowed are once and per_use")
    cpu_module = importlib.import_module("appliance.model.qwen4exp.cpu")
    loaded: LoadedModel = cpu_module.load_cpu_model(spec, plan, progress)
    return loaded
