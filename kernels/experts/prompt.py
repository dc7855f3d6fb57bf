"""Experts over many rows of a prompt: pairs of row and expert are sorted on the device, and every expert reads its own.

All launches depend on the number of rows and on the layer's sizes; how busy each expert is, only the device knows. A
tile is up to `tile_rows` pairs of one expert, and there are as many places for tiles as the worst distribution needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.experts._prompt import count_pairs, down_tiles, gate_up_tiles, list_tiles, place_pairs, swiglu_rows
from kernels.experts._route import top_experts
from kernels.experts.layout import ExpertKind, ExpertLayout, split_expert
from kernels.linear.op import codebook
from kernels.linear.prompt import Room, multiply
from kernels.planes import FORMATS, Planes, operand_columns

_SCAN = 2048
_TILE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Experts of each row: its best first, then the shared one.

    Attributes:
        ids: int32 [rows, 16 or 32].
        weights: float32 likewise.
    """

    ids: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Pairs of a row and a routed expert in the order of experts, and the tiles they fill.

    Attributes:
        size: pairs of a tile.
        first, count: int32 [experts], each one's place among the pairs.
        row: int32 [pairs].
        out: int32 [pairs]: row * (used + 1) + slot.
        share: float32 [pairs].
        tile_expert, tile_first: int32 [tiles]: whose it is (-1 ends the list), and its first pair.
    """

    size: int
    first: Tensor
    count: Tensor
    row: Tensor
    out: Tensor
    share: Tensor
    tile_expert: Tensor
    tile_first: Tensor


def choose_experts(
    logits: Tensor,
    *,
    layout: ExpertLayout,
    gate_column: int,
    counts: Tensor | None = None,
    used: Tensor | None = None,
) -> Choice:
    """The experts of each row, as `kernels.experts.route` chooses them.

    Args:
        logits: float32 [rows, columns], routed experts first; any distance of rows.
        layout: of the layer.
        gate_column: column of the shared expert's logit.
        counts: int32 [experts]; each row adds one to each of its routed experts.
        used: int32 [1], how many rows are somebody's, the others have id -1 for every expert; None: all of them.
    """
    rows, columns = logits.shape
    last = max(layout.experts - 1, gate_column)
    if logits.dtype != torch.float32 or logits.stride(1) != 1 or columns <= last:
        raise ValueError(
            f"choose_experts: logits are float32 [rows, more than {last}] of adjacent values, "
            f"found {logits.dtype} {list(logits.shape)} with strides {logits.stride()}"
        )
    width, device = 16 if layout.used < 16 else 32, logits.device
    ids = torch.empty((rows, width), dtype=torch.int32, device=device)
    weights = torch.empty((rows, width), device=device)
    if used is None:
        used = torch.full((1,), rows, dtype=torch.int32, device=device)
    top_experts[(rows,)](
        logits,
        used,
        ids,
        ids if counts is None else counts,
        ids,
        weights,
        *(ids, ids, ids, weights),
        rows,
        logits.stride(0),
        GATE=gate_column,
        PARTS=1,
        E=layout.experts,
        USED=layout.used,
        W=width,
        COUNT=counts is not None,
        SINGLE=False,
        PDL=False,
        num_warps=4,
    )
    return Choice(ids=ids, weights=weights)


def tile_rows(rows: int, layout: ExpertLayout, *, exact: bool) -> int:
    """Pairs of a tile: about what an expert gets of so many rows, 16 to 64."""
    average = rows * layout.used / layout.experts
    return 16 if exact or average <= 12 else 32 if average <= 28 else 64


def sort_pairs(choice: Choice, *, layout: ExpertLayout, size: int) -> Tiles:
    """Sorts pairs by expert, those of an expert by row, and cuts them into tiles of `size`."""
    rows, width = choice.ids.shape
    pairs, device = rows * layout.used, choice.ids.device
    most = pairs // size + layout.experts

    def whole(count: int) -> Tensor:
        return torch.empty(count, dtype=torch.int32, device=device)

    tiles = Tiles(
        size=size,
        first=whole(layout.experts),
        count=whole(layout.experts),
        row=whole(pairs),
        out=whole(pairs),
        share=torch.empty(pairs, device=device),
        tile_expert=whole(most),
        tile_first=whole(most),
    )
    block = min(_SCAN, _power(pairs))
    blocks, part = -(-pairs // block), min(_TILE, block)
    counts, before = (torch.empty((blocks, layout.experts), dtype=torch.int32, device=device) for _ in range(2))
    shape = {"E": layout.experts, "USED": layout.used, "W": width, "BLOCK": block, "num_warps": 4}
    count_pairs[(blocks, -(-layout.experts // _TILE))](choice.ids, counts, pairs, TILE=_TILE, **shape)
    list_tiles[(layout.experts + 1,)](
        counts,
        tiles.first,
        tiles.count,
        before,
        tiles.tile_expert,
        tiles.tile_first,
        blocks,
        most,
        E=layout.experts,
        E2=_power(layout.experts),
        BM=size,
        LIST=_SCAN,
        num_warps=1,
    )
    place_pairs[(blocks, block // part)](
        choice.ids, choice.weights, before, tiles.row, tiles.out, tiles.share, pairs, TILE=part, **shape
    )
    return tiles


def to_left(x: Tensor) -> Tensor:
    """Rows [rows, K] with their inputs in the order of `_prompt.py`, zeros to the next 128."""
    rows, columns = x.shape
    missing = operand_columns(columns) - columns
    padded = pad(x, (0, missing)) if missing else x  # without the copy that padding by nothing makes
    return padded.reshape(rows, -1, 2, 4, 2, 2, 4).permute(0, 1, 6, 2, 4, 3, 5).reshape(rows, -1)  # mj b mr h i


@dataclass(frozen=True, slots=True)
class ExpertPass:
    """Some of a layer's experts.

    Attributes:
        table: int64 [experts + 1] of `table_entry`; NONE where the expert has no part in this pass.
        form: the format bit of those that have.
    """

    table: Tensor
    form: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkExperts:
    """A layer's experts.

    Attributes:
        layout: of the layer.
        anchor: of the tables.
        shared: words of the shared expert.
        passes: every routed expert once. The next one is asked for when a pass is enqueued.
    """

    layout: ExpertLayout
    anchor: Tensor
    shared: Tensor
    passes: Iterable[ExpertPass]


def run_experts_chunk(
    x: Tensor, choice: Choice, *, experts: ChunkExperts, room: Room, exact: bool, out: Tensor
) -> None:
    """The weighted results of every row and slot; their sum over slots, in order, is the mixture.

    Args:
        x: [rows, hidden], fp16, or float32 if exact.
        choice: of these rows.
        experts: of the layer.
        room: for the shared expert's matrices.
        exact: float32 throughout.
        out: contiguous [rows, used + 1, hidden] of x's type; every value is written, the shared expert's last.

    Raises:
        ValueError: a shape or type that does not fit.
    """
    layout, rows = experts.layout, x.shape[0]
    hidden, wanted = layout.kind.hidden, torch.float32 if exact else torch.float16
    if out.shape != (rows, layout.used + 1, hidden) or out.dtype != wanted or not out.is_contiguous():
        raise ValueError(
            f"experts: out is contiguous {wanted} [{rows}, {layout.used + 1}, {hidden}], "
            f"found {out.dtype} {list(out.shape)}"
        )
    if x.shape != (choice.ids.shape[0], hidden) or x.dtype != wanted:
        raise ValueError(f"experts: x is {wanted} [{choice.ids.shape[0]}, {hidden}], found {x.dtype} {list(x.shape)}")
    tiles = sort_pairs(choice, layout=layout, size=tile_rows(rows, layout, exact=exact))
    left = to_left(x)
    inner = torch.empty((rows * layout.used, operand_columns(layout.kind.ff)), dtype=wanted, device=x.device)
    for one in experts.passes:
        gate_up_chunk(left, tiles, one, experts=experts, out=inner, exact=exact)
        down_chunk(inner, tiles, one, experts=experts, out=out, exact=exact)
    _shared(x, choice.weights[:, layout.used], experts=experts, room=room, exact=exact, out=out[:, layout.used])


def gate_up_chunk(
    left: Tensor, tiles: Tiles, one: ExpertPass, *, experts: ChunkExperts, out: Tensor, exact: bool
) -> None:
    """silu(gate x) * up x of every pair of the pass, into `out` [pairs, padded ff]."""
    kind = _kind(experts.layout, one.form)
    strips = 2 * operand_columns(kind.ff) // 32
    gate_up_tiles[(tiles.tile_expert.shape[0] * strips // 4,)](
        *_places(experts, tiles, one),
        tiles.row,
        left,
        out,
        codebook(left.device),
        FORM=one.form,
        FMT=FORMATS[kind.gate_up].packed,
        BM=tiles.size,
        NCH=operand_columns(kind.hidden) // 128,
        STRIPS=strips,
        EXACT=exact,
        **_options(kind.gate_up, tiles.size, left.device),
    )


def down_chunk(
    inner: Tensor, tiles: Tiles, one: ExpertPass, *, experts: ChunkExperts, out: Tensor, exact: bool
) -> None:
    """The weighted down projections of every pair of the pass."""
    kind = _kind(experts.layout, one.form)
    strips = -(-kind.hidden // 32)
    down_tiles[(tiles.tile_expert.shape[0] * -(-strips // 4),)](
        *_places(experts, tiles, one),
        tiles.out,
        tiles.share,
        inner,
        out,
        codebook(inner.device),
        kind.hidden,
        FORM=one.form,
        FMT=FORMATS[kind.down].packed,
        SKIP=kind.gate_up_words,
        BM=tiles.size,
        NCH=operand_columns(kind.ff) // 128,
        STRIPS=strips,
        EXACT=exact,
        **_options(kind.down, tiles.size, inner.device),
    )


def _places(experts: ChunkExperts, tiles: Tiles, one: ExpertPass) -> tuple[Tensor, ...]:
    return (
        experts.anchor.view(torch.uint32),
        one.table,
        tiles.tile_expert,
        tiles.tile_first,
        tiles.first,
        tiles.count,
    )


def _options(form: str, size: int, device: torch.device) -> dict[str, int]:
    """How a launch is compiled: chunks of inputs in flight, as many as small cards' shared memory holds, and registers.

    On sm_90 and newer three programs share a processor if each takes no more than 168; a few values then lie in memory,
    which costs less than the third program brings. Wide codes have too many of them.
    """
    bits = FORMATS[form].bits
    options = {"num_warps": 4, "num_stages": 1 if bits == 32 else 3}
    if device.type == "cuda" and size == 64 and bits <= 6 and torch.cuda.get_device_capability(device) >= (9, 0):
        options["maxnreg"] = 168
    return options


def _kind(layout: ExpertLayout, form: int) -> ExpertKind:
    return layout.host_kind if form else layout.kind


def _shared(x: Tensor, share: Tensor, *, experts: ChunkExperts, room: Room, exact: bool, out: Tensor) -> None:
    """The shared expert reads every row: two products like those of any matrix."""
    kind = experts.layout.shared_kind
    upper, lower = split_expert(experts.shared, kind)
    both = multiply(x, upper, room=room, exact=exact)
    inner = torch.empty((x.shape[0], kind.ff), dtype=x.dtype, device=x.device)
    block = min(1024, _power(kind.ff))
    swiglu_rows[(x.shape[0], -(-kind.ff // block))](
        both, inner, both.stride(0), FF=kind.ff, BLOCK=block, EXACT=exact, num_warps=4
    )
    torch.mul(multiply(inner, lower, room=room, exact=exact), share.unsqueeze(1).to(out.dtype), out=out)


def shared_matrices(experts: ChunkExperts) -> tuple[Planes, Planes]:
    """The shared expert's matrices, for the size of the room."""
    return split_expert(experts.shared, experts.layout.shared_kind)


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()
