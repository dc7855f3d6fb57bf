"""Hyper-connections: reading the streams into a block, writing its output back."""
