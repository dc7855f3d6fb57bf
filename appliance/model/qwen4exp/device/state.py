"""State of all slots on a device, for a range of layers: everything by position, so that a draft leaves no trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from appliance.errors import EngineFault
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.spec import ModelSpec
from kernels.attention.decode import Indexer
from kernels.attention.pool import KvPool
from kernels.gdn.decode import DeltaState, new_state
from kernels.window import RING_POSITIONS

KV_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}


def pooled_type(kv_type: str) -> torch.dtype:
    """Storage of pooled indexer keys: float32 beside float32 keys, else fp16."""
    return torch.float32 if kv_type == "f32" else torch.float16


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """Tensors with a place for every slot and a dummy one last; likewise for pages.

    Attributes:
        delta: of the range's linear layers, in order.
        rings: float32 [16 positions of a slot: slots + 1, 16, indexer dim], one for each of the range's full layers.
        pools: keys and values of the range's full layers, in order.
        pooled: [pages + 1, blocks of a page, indexer dim] of the same layers.
        ngram_ring: float32 [slots + 1, 16, streams * hidden]: normed gated values; None without the n-gram layer.
        token_ring: int32 [slots + 1, 16].
        draft_pool: keys and values of the draft layer; None in other stages and without drafts.
        pages: int32 [slots + 1, pages of the longest context]; what a slot lacks points at the last page.
    """

    delta: tuple[DeltaState, ...]
    rings: tuple[torch.Tensor, ...]
    pools: tuple[KvPool, ...]
    pooled: tuple[torch.Tensor, ...]
    ngram_ring: torch.Tensor | None
    token_ring: torch.Tensor
    draft_pool: KvPool | None
    pages: torch.Tensor

    def indexer(self, number: int, *, query_norm: torch.Tensor, key_norm: torch.Tensor, block_tokens: int) -> Indexer:
        """The indexer of the range's full layer `number`."""
        return Indexer(
            query_norm=query_norm,
            key_norm=key_norm,
            ring=self.rings[number],
            pooled=self.pooled[number],
            block_tokens=block_tokens,
        )

    def set_pages(self, slot: int, pages: Sequence[int]) -> None:
        """Writes a slot's pages, in order of position; the rest of its row is the dummy slot's. Does not wait."""
        row = self.pages[slot]
        row.copy_(self.pages[-1])
        held = torch.tensor(list(pages), dtype=torch.int32, pin_memory=row.is_cuda)
        row[: len(pages)].copy_(held, non_blocking=True)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self._tensors())

    def _tensors(self) -> list[torch.Tensor]:
        found = [self.token_ring, self.pages, *self.rings, *self.pooled]
        found += [self.ngram_ring] if self.ngram_ring is not None else []
        for pool in (*self.pools, *([self.draft_pool] if self.draft_pool is not None else [])):
            found += [pool.keys, pool.values]
            found += [t for t in (pool.key_scales, pool.value_scales) if t is not None]
        for one in self.delta:
            found += [one.delta, one.at, one.conv, one.key, one.value, one.decay, one.strength]
        return found


def page_columns(plan: LoadPlan) -> int:
    """Pages of the longest context, with room for drafts beyond it."""
    return -(-(plan.max_tokens + plan.draft_max + 1) // plan.page_tokens)


def make_state(
    spec: ModelSpec, plan: LoadPlan, *, layers: range, ngram: bool, draft: bool, device: torch.device
) -> DeviceState:
    """Zero state for a range of trunk layers.

    Args:
        spec: the model.
        plan: slots, pages and the type of keys and values.
        layers: of the stage.
        ngram: whether the n-gram layer is among them.
        draft: whether the draft layer lives here too.
        device: where.
    """
    slots, page = plan.slots, plan.page_tokens
    full = [index for index in layers if spec.full_attention[index]]
    kinds = {
        "pages": plan.pages,
        "heads": spec.kv_heads,
        "page_tokens": page,
        "dim": spec.head_dim,
        "dtype": KV_TYPES[plan.kv_type],
        "device": device,
    }
    blocks, dim = page // spec.block_tokens, spec.indexer_dim
    linear = len(layers) - len(full)
    delta: tuple[DeltaState, ...] = ()
    if linear:
        delta = new_state(
            slots,
            key_heads=spec.gdn_key_heads,
            heads=spec.gdn_value_heads,
            dim=spec.gdn_head_dim,
            device=device,
            layers=linear,
        )
    ring = (slots + 1, RING_POSITIONS)
    return DeviceState(
        delta=delta,
        rings=tuple(torch.zeros(*ring, dim, device=device) for _ in full),
        pools=tuple(KvPool.empty(**kinds) for _ in full),  # type: ignore[arg-type]
        pooled=tuple(
            torch.zeros(plan.pages + 1, blocks, dim, dtype=pooled_type(plan.kv_type), device=device) for _ in full
        ),
        ngram_ring=torch.zeros(*ring, spec.wide, device=device) if ngram else None,
        token_ring=torch.zeros(*ring, dtype=torch.int32, device=device),
        draft_pool=KvPool.empty(**kinds) if draft else None,  # type: ignore[arg-type]
        pages=torch.full((slots + 1, page_columns(plan)), plan.pages, dtype=torch.int32, device=device),
    )


class Slots:
    """What the host knows of the slots: lengths, how often each was opened, and pages."""

    def __init__(self, plan: LoadPlan) -> None:
        self.lengths = [0] * plan.slots
        self.opened = [0] * plan.slots
        self.pages: list[tuple[int, ...]] = [()] * plan.slots
        self._plan = plan

    def open(self, slot: int) -> None:
        """Empties a slot; a slot at position 0 has no past, so nothing on the device is cleared."""
        self.lengths[slot] = 0
        self.opened[slot] += 1
        self.pages[slot] = ()

    def set_pages(self, slot: int, pages: Sequence[int]) -> None:
        """Notes the slot's pages.

        Raises:
            EngineFault: a page that does not exist, more than the longest context, or a change of pages in use.
        """
        had, plan = self.pages[slot], self._plan
        if len(pages) > page_columns(plan) or any(not 0 <= page < plan.pages for page in pages):
            raise EngineFault(
                f"slot {slot}: pages {list(pages)[:8]} ({len(pages)}) refused; allowed are {page_columns(plan)} pages, "
                f"each 0 to {plan.pages - 1}"
            )
        if tuple(pages[: len(had)]) != had:
            raise EngineFault(f"slot {slot}: pages in use changed; the first {len(had)} must stay as they are")
        self.pages[slot] = tuple(pages)

    def room(self, slot: int) -> int:
        """Tokens the slot's pages hold."""
        return len(self.pages[slot]) * self._plan.page_tokens
