"""Sparse attention's indexer: pooled block keys, block scores, and the tokens a query may see."""
