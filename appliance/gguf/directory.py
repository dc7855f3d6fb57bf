"""Judges the tensor directory of one part: types, sizes, alignment, overlap and the end of the file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from appliance.errors import ModelFileError
from appliance.gguf.header import Entry, Header
from appliance.gguf.types import BY_NUMBER, COMPUTABLE, FORK_Q2_0_BYTES, FORK_Q2_0_WEIGHTS, GgmlType, type_label

MAX_ELEMENTS: Final = (1 << 63) - 1
_LISTED: Final = 1000
_DOWNLOAD: Final = "the download is not complete; download this part again"


@dataclass(frozen=True)
class Placed:
    """A tensor whose place in the part has been checked. Offset is absolute in the part, dims innermost first."""

    name: str
    dims: tuple[int, ...]
    type: GgmlType
    byte_count: int
    offset: int


@dataclass(frozen=True)
class Unusable:
    """A tensor that this engine cannot compute, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Directory:
    """The tensors of one part: those that can be used, and those that cannot, in file order."""

    placed: tuple[Placed, ...]
    unusable: tuple[Unusable, ...]


def judge(header: Header, *, size_bytes: int, where: str) -> Directory:
    """Checks every directory entry against its type, its neighbours and the end of the part.

    Args:
        header: as parsed.
        size_bytes: of the part.
        where: what to call the part in messages.

    Raises:
        ModelFileError: a tensor with an impossible size, twice the same name, an unaligned or overlapping place,
            one that ends after the part, or a type 42 tensor in a fork's layout.
    """
    placed: list[Placed] = []
    unusable: list[Unusable] = []
    names: set[str] = set()
    for entry in header.entries:
        if entry.name in names:
            raise ModelFileError(f"{where}: the tensor {entry.name:.80} appears twice")
        names.add(entry.name)
        _check_numbers(entry, header, where)
        found = _judge_type(entry)
        if isinstance(found, Unusable):
            unusable.append(found)
            continue
        size = math.prod(entry.dims) // found.block_weights * found.block_bytes
        placed.append(Placed(entry.name, entry.dims, found, size, header.data_start + entry.offset))
    _check_places(header, placed, size_bytes=size_bytes, where=where)
    return Directory(tuple(placed), tuple(unusable))


def refuse_unusable(unusable: Sequence[Unusable], *, where: str) -> None:
    """Raises one error that lists every tensor that cannot be computed.

    Raises:
        ModelFileError: when there is any; grouped by reason, with the list of types that can be computed.
    """
    if not unusable:
        return
    groups: dict[str, list[str]] = {}
    for tensor in unusable[:_LISTED]:
        groups.setdefault(tensor.reason, []).append(f"{tensor.name:.80}")
    listing = "; ".join(f"{reason}: {', '.join(names)}" for reason, names in groups.items())
    more = f" and {len(unusable) - _LISTED} more" if len(unusable) > _LISTED else ""
    raise ModelFileError(
        f"{where}: {len(unusable)} tensor(s) not supported by this engine: {listing}{more}; "
        f"supported types: {', '.join(COMPUTABLE)}",
        hint="use a file quantised to these types",
    )


def _check_numbers(entry: Entry, header: Header, where: str) -> None:
    elements = math.prod(entry.dims)
    if not 0 < elements <= MAX_ELEMENTS:
        raise ModelFileError(
            f"{where}: the tensor {entry.name:.80} has dimensions {list(entry.dims)}, {elements} weights; "
            f"1 to {MAX_ELEMENTS} are possible"
        )
    if entry.offset % header.alignment:
        raise ModelFileError(
            f"{where}: the tensor {entry.name:.80} has offset {entry.offset}; "
            f"it must be a multiple of the alignment {header.alignment}"
        )


def _judge_type(entry: Entry) -> GgmlType | Unusable:
    found = BY_NUMBER.get(entry.type_number)
    if found is None or found.name not in COMPUTABLE:
        return Unusable(entry.name, type_label(entry.type_number))
    if entry.dims[0] % found.block_weights:
        reason = f"type {found.name} with rows of {entry.dims[0]} weights, not a multiple of {found.block_weights}"
        return Unusable(entry.name, reason)
    return found


def _check_places(header: Header, placed: Iterable[Placed], *, size_bytes: int, where: str) -> None:
    """Walks the tensors by offset; unusable ones have no known size but still bound the one before them."""
    by_offset = sorted(placed, key=lambda t: t.offset)
    starts = [*sorted({header.data_start + e.offset for e in header.entries}), size_bytes]
    position = 0
    previous: Placed | None = None
    for tensor in by_offset:
        if previous is not None and tensor.offset < previous.offset + previous.byte_count:
            raise ModelFileError(
                f"{where}: the tensors {previous.name:.80} and {tensor.name:.80} overlap: the first takes bytes "
                f"{previous.offset} to {previous.offset + previous.byte_count}, the second starts at {tensor.offset}"
            )
        while starts[position] <= tensor.offset and starts[position] != size_bytes:
            position += 1
        if _is_fork_q2_0(tensor, starts[position] - tensor.offset):
            raise _fork_error(tensor, starts[position] - tensor.offset, where)
        end = tensor.offset + tensor.byte_count
        if end > size_bytes:
            late = sum(t.offset + t.byte_count > size_bytes for t in by_offset)
            others = f" (and {late - 1} more tensors)" if late > 1 else ""
            raise ModelFileError(
                f"{where}: the tensor {tensor.name:.80}{others} ends at byte {end} and the file has {size_bytes}: "
                f"expected {tensor.byte_count} bytes of it, found {max(0, size_bytes - tensor.offset)}",
                hint=_DOWNLOAD,
            )
        previous = tensor


def _is_fork_q2_0(tensor: Placed, room_bytes: int) -> bool:
    weights = math.prod(tensor.dims)
    if tensor.type.name != "Q2_0" or weights % FORK_Q2_0_WEIGHTS:
        return False
    return weights // FORK_Q2_0_WEIGHTS * FORK_Q2_0_BYTES <= room_bytes < tensor.byte_count


def _fork_error(tensor: Placed, room_bytes: int, where: str) -> ModelFileError:
    return ModelFileError(
        f"{where}: the tensor {tensor.name:.80} has type Q2_0 (42) and room for {room_bytes} bytes, which fits a "
        f"fork's {FORK_Q2_0_BYTES} bytes per {FORK_Q2_0_WEIGHTS} weights; this engine computes "
        f"{tensor.type.block_bytes} bytes per {tensor.type.block_weights} weights, {tensor.byte_count} bytes in all",
        hint="use a file written by upstream ggml",
    )
