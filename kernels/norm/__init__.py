"""Root-mean-square normalisation over the last axis."""

from kernels.norm.op import rms_norm

__all__ = ["rms_norm"]
