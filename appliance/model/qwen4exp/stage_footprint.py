"""What each layer of a qwen4exp model takes on a card, so that any range of layers can be priced; torch-free."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

from appliance.model.qwen4exp.device_footprint import (
    dense_tensor_bytes,
    expert_bytes,
    host_expert_sizes,
    matrix_bytes,
    slot_bytes,
)
from appliance.model.qwen4exp.footprint import NGRAM_TABLE, SlotBytes, ngram_bytes
from appliance.model.qwen4exp.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """What a range of layers takes on its card.

    Attributes:
        dense: all weights but routed experts and the n-gram table.
        experts: of each layer, all routed ones; the draft layer last, where it is.
        host_experts: the same as pinned RAM would hold them.
        fixed: states and histories of one slot.
        page: keys, values and pooled indexer keys of one page.
        ngram: the n-gram table, where its layer is; 0 elsewhere.
    """

    dense: int
    experts: tuple[int, ...]
    host_experts: tuple[int, ...]
    fixed: int
    page: int
    ngram: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBytes:
    """A model layer by layer.

    Attributes:
        dense: of each trunk layer.
        experts, host_experts: all routed ones of each layer, the draft layer last where it is used.
        slots: what each trunk layer keeps of a conversation.
        ring: kept on every card for each slot.
        embedding, head, drafter: dense weights that no trunk layer has; the drafter's is 0 without drafts.
        drafts: whether there is a draft layer.
        draft_page: keys and values of the draft layer in one page.
        ngram: the table; 0 without one.
        ngram_layer: which layer reads it; -1 without one.
        ngram_ring: what that layer keeps of a conversation besides.
    """

    dense: tuple[int, ...]
    experts: tuple[int, ...]
    host_experts: tuple[int, ...]
    slots: tuple[SlotBytes, ...]
    ring: int
    embedding: int
    head: int
    drafter: int
    drafts: bool
    draft_page: int
    ngram: int
    ngram_layer: int
    ngram_ring: int

    @property
    def layers(self) -> int:
        """Of the trunk."""
        return len(self.dense)

    def stage(self, layers: range) -> StageBytes:
        """The bytes of some layers: the embedding lies with the first, head and draft layer with the last.

        The draft layer looks tokens up too, so the last of several cards has the embedding a second time.
        """
        first, last = layers.start == 0, layers.stop == self.layers
        drafts = last and self.drafts
        dense = sum(self.dense[layers.start : layers.stop])
        dense += self.embedding * (first or drafts) + (self.head + self.drafter) * last
        own = slice(layers.start, layers.stop + drafts)
        table = self.ngram_layer in layers
        mine = self.slots[layers.start : layers.stop]
        return StageBytes(
            dense=dense,
            experts=self.experts[own],
            host_experts=self.host_experts[own],
            fixed=sum(one.fixed for one in mine) + self.ring + self.ngram_ring * table,
            page=sum(one.page for one in mine) + self.draft_page * drafts,
            ngram=self.ngram * table,
        )


@functools.lru_cache(maxsize=16)
def model_bytes(spec: ModelSpec, *, page_tokens: int, kv_type: str, draft: bool) -> ModelBytes:
    """Takes a model apart.

    Args:
        spec: the model.
        page_tokens: tokens of a KV page.
        kv_type: storage of keys and values.
        draft: whether the draft layer is loaded.
    """
    dense = [0] * spec.trunk_layers
    head = drafter = 0
    for name, tensor in spec.tensors.items():
        if name in (NGRAM_TABLE, "token_embd.weight") or "_exps." in name:
            continue
        size = dense_tensor_bytes(name, tensor)
        layer = int(name.split(".")[1]) if name.startswith("blk.") else -1
        if layer < 0:
            head += size
        elif layer < spec.trunk_layers:
            dense[layer] += size
        elif draft and ".indexer." not in name:
            drafter += size
    embedding = spec.tensors["token_embd.weight"]
    if "output.weight" not in spec.tensors:
        head += matrix_bytes(embedding)
    experts = expert_bytes(spec, draft=draft)
    kept = _kept(spec, page_tokens=page_tokens, kv_type=kv_type)
    return ModelBytes(
        dense=tuple(dense),
        experts=tuple(one * experts.count for one in experts.layers),
        host_experts=host_expert_sizes(spec, draft=draft),
        slots=tuple(kept["full" if full else "linear"] for full in spec.full_attention),
        ring=kept["ring"].fixed,
        embedding=embedding.byte_count,
        head=head,
        drafter=drafter,
        drafts=draft,
        draft_page=kept["draft"].page if draft else 0,
        ngram=ngram_bytes(spec),
        ngram_layer=-1 if spec.ngram is None else spec.ngram.layer,
        ngram_ring=kept["ngram"].fixed,
    )


def _kept(spec: ModelSpec, *, page_tokens: int, kv_type: str) -> dict[str, SlotBytes]:
    """What each kind of layer keeps: the whole model's formula, asked about models of one layer or none."""

    def of(*full: bool, ngram: bool = False, draft: bool = False) -> SlotBytes:
        one = dataclasses.replace(
            spec, trunk_layers=len(full), full_attention=full, ngram=spec.ngram if ngram else None
        )
        return slot_bytes(one, page_tokens=page_tokens, kv_type=kv_type, draft=draft)

    ring = of()
    found = {"linear": of(False), "full": of(True), "ngram": of(ngram=True), "draft": of(draft=True)}
    return {"ring": ring} | {
        name: SlotBytes(fixed=one.fixed - ring.fixed, page=one.page - ring.page) for name, one in found.items()
    }
