"""What a model is told about where and how large: the numbers of a placement that loading needs; torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Sizes and homes for one loaded model.

    Attributes:
        device: "cpu" or "cuda:N".
        slots: conversations held at once.
        pages: KV pages in all.
        page_tokens: tokens of a page; a multiple of the indexer's block.
        max_tokens: context of one conversation.
        max_window_rows: rows of the longest window.
        chunk_rows: on a card: rows of the longest prompt chunk; 0: prompts go through windows.
        recorded_rows: on a card: sizes of prompt chunks that are recorded, which shorter ones are filled up to.
        draft_max: longest draft; 0 leaves the draft layer out.
        draft_min_p: on a card: the drafter's probability below which a draft ends.
        ngram_home: "ram" (bytes copied), "mmap" (rows from the mapping), "direct" (rows read from the file past the
            page cache) or "vram" (bytes on the device).
        unpack: "once" keeps float32 matrices, "per_use" keeps the stored blocks and unpacks what a window touches.
        kv_type: "f32" or "bf16"; on a card also "int8".
        expert_pool_bytes: on a card: memory for routed experts, the others stay in pinned RAM; None: all on the card.
        layer_split: first layer of each later stage.
        devices: one for each stage, such as ("cuda:0", "cuda:1"); empty: every stage is on `device`.
        stage_pool_bytes: `expert_pool_bytes` of each stage's own card; empty: shares of one pool.
        groups: most groups of slots that follow each other through the stages.
        adapt_every: on a card: windows between looks at the routing, after which experts change places; 0: they stay.
        profile: file with what earlier runs learned of the routing, "" for none: which experts start on the card.
        exact: on a card: float32 activations, for comparison with references.
        plain: on a card: every launch by itself, without graphs.
        nvtx: on a card: named ranges for Nsight Systems.
    """

    device: str
    slots: int
    pages: int
    page_tokens: int
    max_tokens: int
    max_window_rows: int
    draft_max: int
    ngram_home: str = "ram"
    unpack: str = "once"
    kv_type: str = "f32"
    expert_pool_bytes: int | None = None
    layer_split: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    stage_pool_bytes: tuple[int, ...] = ()
    groups: int = 1
    chunk_rows: int = 0
    recorded_rows: tuple[int, ...] = ()
    adapt_every: int = 0
    profile: str = ""
    draft_min_p: float = 0.0
    exact: bool = False
    plain: bool = False
    nvtx: bool = False
