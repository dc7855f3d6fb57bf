"""Whole passes over a model's layers as one compiled call, so that a window meets the interpreter's lock once."""
