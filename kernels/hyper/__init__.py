"""Hyper-connections: several residual streams, read through low-rank gates and written with per-stream weights."""

from kernels.hyper.op import ReadWeights, read_streams, write_streams

__all__ = ["ReadWeights", "read_streams", "write_streams"]
