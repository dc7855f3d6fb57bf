"""Hashed n-gram embeddings: row numbers of the table, and the gated values that enter the streams."""
