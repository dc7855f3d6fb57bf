"""Mixture of experts: routing and the experts' products."""

from kernels.moe.op import route, run_experts, run_fetched

__all__ = ["route", "run_experts", "run_fetched"]
