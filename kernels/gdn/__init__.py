"""Gated DeltaNet over a window: causal convolution, delta rule, and the state after a kept prefix of the rows."""

from kernels.gdn.op import DeltaRows, causal_conv, commit_state, delta_rule, gated_norm, unit_keys

__all__ = ["DeltaRows", "causal_conv", "commit_state", "delta_rule", "gated_norm", "unit_keys"]
