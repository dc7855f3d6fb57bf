"""Owns what a placement is: every part in bytes, in RAM and on each card, and what the model is told of it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from appliance.model.plan import LoadPlan
from appliance.rig.cards import Card


@dataclass(frozen=True, slots=True)
class Item:
    """A part of the placement.

    Attributes:
        name: what it is.
        size_bytes: how large.
        note: how it came about.
    """

    name: str
    size_bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One card with its layers.

    Attributes:
        card: which.
        first_layer, past_layer: first and one past the last that it computes.
        items: every part on it.
        budget_bytes: what it has for this process.
        expert_bytes: of the items, for routed experts.
        all_expert_bytes: what the routed experts of its layers would take.
    """

    card: Card
    first_layer: int
    past_layer: int
    items: tuple[Item, ...]
    budget_bytes: int
    expert_bytes: int
    all_expert_bytes: int

    @property
    def used_bytes(self) -> int:
        """All parts together."""
        return sum(item.size_bytes for item in self.items)

    @property
    def free_bytes(self) -> int:
        """Budget that is left; negative when it does not fit."""
        return self.budget_bytes - self.used_bytes

    @property
    def cached(self) -> float:
        """Share of its layers' routed experts that it holds, 0 to 1."""
        return self.expert_bytes / self.all_expert_bytes if self.all_expert_bytes else 1.0

    def size(self, name: str) -> int:
        """Bytes of a part."""
        return sum(item.size_bytes for item in self.items if item.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What is allocated, where and how large.

    Attributes:
        items: every part in RAM; their sum is `total_bytes`.
        budget_bytes: of RAM that this process may use.
        stages: the cards in the order of their layers; empty on the CPU.
        max_rows, span_rows: rows of the largest window, and of one conversation in it; None where nothing bounds them.
        chunk_rows: of a turn that one longer prompt has for itself; 0 where prompts share windows.
        recorded_rows: sizes of such turns that are recorded as graphs.
        groups: most groups of conversations that follow each other through the cards.
        plain, nvtx: every launch by itself, without graphs; named ranges for Nsight Systems.
        notes: sentences for whoever reads the plan.
        Others: see LoadPlan and EngineConfig.
    """

    device: str
    items: tuple[Item, ...]
    budget_bytes: int
    parallel: int
    max_tokens: int
    page_tokens: int
    pages: int
    prompt_chunk: int
    draft_max: int
    draft_min_p: float
    batch_mtp: bool
    queue: int
    unpack: str
    ngram_home: str
    kv_type: str
    notes: tuple[str, ...] = ()
    stages: tuple[StagePlan, ...] = ()
    max_rows: int | None = None
    span_rows: int | None = None
    chunk_rows: int = 0
    recorded_rows: tuple[int, ...] = ()
    groups: int = 1
    plain: bool = False
    nvtx: bool = False

    @property
    def fits(self) -> bool:
        """Whether RAM and every card hold it."""
        return self.free_bytes >= 0 and all(stage.free_bytes >= 0 for stage in self.stages)

    @property
    def total_bytes(self) -> int:
        """All parts in RAM together."""
        return sum(item.size_bytes for item in self.items)

    @property
    def free_bytes(self) -> int:
        """Budget of RAM that is left; negative when it does not fit."""
        return self.budget_bytes - self.total_bytes

    @property
    def short_bytes(self) -> int:
        """What RAM and cards lack; 0 when it fits."""
        return max(0, -self.free_bytes) + sum(max(0, -stage.free_bytes) for stage in self.stages)

    @property
    def layer_split(self) -> tuple[int, ...]:
        """First layer of each later card."""
        return tuple(stage.first_layer for stage in self.stages[1:])

    @property
    def card_items(self) -> tuple[Item, ...]:
        """All parts on all cards."""
        return tuple(itertools.chain.from_iterable(stage.items for stage in self.stages))

    @property
    def model_bytes(self) -> int:
        """Parts that loading allocates: what is compared with the measured growth afterwards."""
        return sum(item.size_bytes for item in self.items if item.name not in ("runtime", "buffers", "headroom"))

    @property
    def pinned_bytes(self) -> int:
        """Of the parts in RAM, those that must be locked there for the cards to read."""
        pinned = ("experts", "n-gram table", "buffers", "hand-off") if self.stages else ()
        return sum(item.size_bytes for item in self.items if item.name in pinned)

    @property
    def window_rows(self) -> int:
        """Rows of the longest window: a prompt chunk beside every slot with all its drafts."""
        rows = self.parallel * (1 + self.draft_max) + self.prompt_chunk
        return rows if self.max_rows is None else min(rows, self.max_rows)

    def load_plan(self) -> LoadPlan:
        """What the model is told."""
        return LoadPlan(
            device=self.device,
            slots=self.parallel,
            pages=self.pages,
            page_tokens=self.page_tokens,
            max_tokens=self.max_tokens,
            max_window_rows=self.window_rows,
            draft_max=self.draft_max,
            draft_min_p=self.draft_min_p,
            ngram_home=self.ngram_home,
            unpack=self.unpack,
            kv_type=self.kv_type,
            expert_pool_bytes=sum(stage.expert_bytes for stage in self.stages) if self.stages else None,
            layer_split=self.layer_split,
            devices=tuple(f"cuda:{number}" for number in range(len(self.stages))),
            stage_pool_bytes=tuple(stage.expert_bytes for stage in self.stages),
            groups=self.groups,
            chunk_rows=self.chunk_rows,
            recorded_rows=self.recorded_rows,
            plain=self.plain,
            nvtx=self.nvtx,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a placement may vary."""

    tokens: int
    parallel: int
    unpack: str
    home: str
