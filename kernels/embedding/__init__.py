"""Rows of quantised tables on the device: embeddings into the streams, and the entry of a draft layer."""

from kernels.embedding.entry import EntryBuffers, EntryWeights, enter_draft, new_buffers
from kernels.embedding.op import Table, embed

__all__ = ["EntryBuffers", "EntryWeights", "Table", "embed", "enter_draft", "new_buffers"]
