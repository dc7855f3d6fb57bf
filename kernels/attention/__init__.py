"""Attention of a window's rows over keys and values in pages."""
