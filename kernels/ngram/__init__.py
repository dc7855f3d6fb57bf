"""Hashed n-gram embeddings: row numbers of the table, and the gated values that enter the streams."""

from kernels.ngram.op import GateWeights, context_windows, gate_values, hash_rows

__all__ = ["GateWeights", "context_windows", "gate_values", "hash_rows"]
