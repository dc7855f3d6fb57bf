"""Gated DeltaNet: convolution, recurrence, gated normalisation."""
