"""Opens a model: one GGUF file, any part of a split set, or a folder that holds one model."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from appliance.errors import ModelFileError
from appliance.gguf.directory import refuse_unusable
from appliance.gguf.metadata import Metadata
from appliance.gguf.part import GgufPart, OpenedPart, TensorInfo, open_part, part_of_bytes
from appliance.gguf.split import check_set, model_file, part_count, sibling_paths

__all__ = ["GgufPart", "GgufSet", "TensorInfo", "open_bytes", "open_set"]


@dataclass(frozen=True, eq=False)
class GgufSet:
    """An opened model.

    Attributes:
        parts: in order; one for a single file.
        metadata: the keys of the first part, which carries those of the model.
        tensors: of all parts, by name, in file order.
        warnings: sentences about what is odd in the files and yet not refused.
    """

    parts: tuple[GgufPart, ...]
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]
    warnings: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """File name of the first part, for messages."""
        return self.parts[0].path.name

    def close(self) -> None:
        """Closes every part."""
        for part in self.parts:
            part.close()


def open_set(path: Path) -> GgufSet:
    """Opens the header and directory of a model. No tensor byte is touched.

    Args:
        path: a single file, any part of a split set, or a folder that holds one model.

    Raises:
        ModelFileError: the files are missing, damaged, cut short, contradictory, or hold types that this engine
            cannot compute.
    """
    file = model_file(path)
    with ExitStack() as undo:
        opened = [_open(file, undo)]
        if part_count(opened[0].part.metadata) > 1:
            paths = sibling_paths(file, opened[0].part.metadata)
            opened = [opened[0] if p == file else _open(p, undo) for p in paths]
            check_set(opened)
        where = opened[0].part.path.name
        refuse_unusable([t for o in opened for t in o.unusable], where=where)
        found = _join(opened)
        undo.pop_all()
    return found


def open_bytes(data: bytes, *, name: str) -> GgufSet:
    """Opens a single file that is in memory; otherwise as `open_set`.

    Raises:
        ModelFileError: as `open_set`, and for a part of a split set.
    """
    opened = part_of_bytes(data, name=name)
    if part_count(opened.part.metadata) > 1:
        raise ModelFileError(f"{name}: one part of a split set; all of them are needed")
    refuse_unusable(opened.unusable, where=name)
    return _join([opened])


def _open(path: Path, undo: ExitStack) -> OpenedPart:
    opened = open_part(path)
    undo.callback(opened.part.close)
    return opened


def _join(opened: Sequence[OpenedPart]) -> GgufSet:
    parts = tuple(o.part for o in opened)
    tensors = {t.name: t for o in opened for t in o.tensors}
    warnings = tuple(w for o in opened for w in _unwritten(o))
    return GgufSet(parts, parts[0].metadata, MappingProxyType(tensors), warnings)


def _unwritten(opened: OpenedPart) -> tuple[str, ...]:
    """A download that reserves its space first and then stops leaves the right size and an unwritten tail."""
    by_offset = sorted(opened.tensors, key=lambda t: t.offset)
    first = bisect_left(by_offset, True, key=lambda t: not opened.part.is_written_from(t.offset))
    lost = by_offset[first:]
    if not lost:
        return ()
    sentence = (
        f"{opened.part.path.name}: nothing was ever written from byte {lost[0].offset} on, where {len(lost)} tensor(s) "
        f"start ({lost[0].name:.80} first); the download is probably not complete"
    )
    return (sentence,)
