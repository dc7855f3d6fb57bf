"""State of all slots: recurrent states, short histories, and paged keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from appliance.errors import EngineFault
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.spec import ModelSpec
from kernels.compiled.arrays import Array
from kernels.trunk.slots import Slots

KV_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def _array(pool: torch.Tensor) -> Array:
    """A pool as the kernels see it: numpy has no bf16."""
    found: Array = pool.numpy() if pool.dtype == torch.float32 else pool.view(torch.int16).numpy()
    return found


class State:
    """Tensors with a place for every slot and page; what is committed is what they hold between windows.

    Attributes:
        delta: float32 [linear layers, slots, value heads, dim, dim].
        conv: float32 [linear layers, slots, taps - 1, channels]: raw inputs of the convolution.
        ple: float32 [slots, (taps - 1) * dilation, streams * hidden].
        index: float32 [full layers, slots, block - 1, indexer dim]: raw indexer keys of the last tokens.
        keys: [full layers (+ draft), kv heads, pages + 1, page tokens, head dim]; the last page is never read.
        values: the same.
        pooled: float32 [full layers, pages + 1, blocks of a page, indexer dim].
        pages: int64 [slots, pages of the longest context] on the host; what a slot lacks points at the last page.
        page_counts: pages each slot has.
        lengths: committed tokens of each slot.
        contexts: the last tokens of each slot, oldest first, as the n-gram hash sees them.
        arrays: the same memory as kernels see it.
    """

    def __init__(self, spec: ModelSpec, plan: LoadPlan) -> None:
        device, slots = torch.device(plan.device), plan.slots
        full = sum(spec.full_attention)
        linear = spec.trunk_layers - full
        channels = (2 * spec.gdn_key_heads + spec.gdn_value_heads) * spec.gdn_head_dim
        block, dim = spec.block_tokens, spec.gdn_head_dim
        ngram = spec.ngram
        history = (ngram.conv_kernel - 1) * ngram.order if ngram else 0
        self._reset = ngram.reset_token_id if ngram else 0
        self._order = ngram.order if ngram else 1
        self._page_tokens = plan.page_tokens
        self.delta = torch.zeros(linear, slots, spec.gdn_value_heads, dim, dim, device=device)
        self.conv = torch.zeros(linear, slots, spec.conv_kernel - 1, channels, device=device)
        self.ple = torch.zeros(slots, history, spec.streams * spec.hidden, device=device)
        self.index = torch.zeros(full, slots, block - 1, spec.indexer_dim, device=device)
        drafting = int(spec.has_draft and plan.draft_max > 0)
        shape = (full + drafting, spec.kv_heads, plan.pages + 1, plan.page_tokens, spec.head_dim)
        self.keys = torch.zeros(shape, dtype=KV_TYPES[plan.kv_type], device=device)
        self.values = torch.zeros(shape, dtype=KV_TYPES[plan.kv_type], device=device)
        self.pooled = torch.zeros(full, plan.pages + 1, plan.page_tokens // block, spec.indexer_dim, device=device)
        longest = -(-(plan.max_tokens + plan.draft_max) // plan.page_tokens)
        self.pages = np.full((slots, longest), plan.pages, dtype=np.int64)
        self.page_counts = [0] * slots
        self.lengths = [0] * slots
        self.contexts = [(self._reset,) * (self._order - 1)] * slots

        self.arrays = Slots(
            conv=self.conv.numpy(),
            delta=self.delta.numpy(),
            ple=self.ple.numpy(),
            index=self.index.numpy(),
            keys=_array(self.keys),
            values=_array(self.values),
            pooled=self.pooled.numpy(),
        )

    def open(self, slot: int) -> None:
        """Empties a slot."""
        for tensor in (self.delta, self.conv, self.index):
            tensor[:, slot] = 0
        self.ple[slot] = 0
        self.pages[slot] = self.keys.shape[2] - 1
        self.page_counts[slot] = 0
        self.lengths[slot] = 0
        self.contexts[slot] = (self._reset,) * (self._order - 1)

    def set_pages(self, slot: int, pages: Sequence[int]) -> None:
        """Gives a slot its pages and clears the new ones: whatever they held (NaN even) stays out of this slot.

        Raises:
            EngineFault: a page that does not exist, more than the longest context, or a change of pages in use.
        """
        had, count = self.page_counts[slot], len(pages)
        last = self.keys.shape[2] - 1
        if count > self.pages.shape[1] or any(not 0 <= page < last for page in pages):
            raise EngineFault(
                f"slot {slot}: pages {list(pages)[:8]} ({count}) refused; allowed are {self.pages.shape[1]} pages, "
                f"each 0 to {last - 1}"
            )
        if count < had or list(self.pages[slot, :had]) != list(pages[:had]):
            raise EngineFault(f"slot {slot}: pages in use changed; the first {had} must stay as they are")
        if count == had:
            return
        self.pages[slot, had:count] = pages[had:]
        self.page_counts[slot] = count
        fresh = torch.from_numpy(self.pages[slot, had:count].copy()).to(self.values.device)
        for pool, axis in ((self.keys, 2), (self.values, 2), (self.pooled, 1)):
            pool.index_fill_(axis, fresh, 0)

    def room(self, slot: int) -> int:
        """Tokens the slot's pages hold."""
        return self.page_counts[slot] * self._page_tokens

    def remember(self, slot: int, tokens: Sequence[int]) -> None:
        """Commits tokens: length and n-gram context."""
        self.lengths[slot] += len(tokens)
        if self._order > 1:
            self.contexts[slot] = (self.contexts[slot] + tuple(tokens))[1 - self._order :]
