"""One GGUF file on disk: opened, mapped read-only, its header parsed and judged."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.errors import ModelFileError
from appliance.gguf.directory import Unusable, judge
from appliance.gguf.header import Header, parse_header
from appliance.gguf.metadata import Metadata
from appliance.gguf.types import GgmlType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class TensorInfo:
    """A tensor's directory entry: enough to place it, without a byte of it read.

    Attributes:
        name: as in the file; a spec may rename it to its canonical name.
        shape: outermost dimension first, as torch has it.
        type: storage type.
        byte_count: bytes of the whole tensor.
        part: the file that holds it.
        offset: bytes from the start of that file.
    """

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    byte_count: int
    part: GgufPart
    offset: int

    @property
    def elements(self) -> int:
        """Number of weights."""
        return self.byte_count // self.type.block_bytes * self.type.block_weights

    @property
    def row_bytes(self) -> int:
        """Bytes of one row (the innermost dimension)."""
        return self.shape[-1] // self.type.block_weights * self.type.block_bytes

    def raw(self) -> NDArray[np.uint8]:
        """The stored bytes, uint8 [byte_count]: a read-only view of the mapping, read from storage when touched.

        Raises:
            ModelFileError: the part was closed, or the file has shrunk since it was opened.
        """
        return self.part.view(self.offset, self.byte_count)


class GgufPart:
    """One mapped file. Made by `open_part`; closed by the set that owns it."""

    def __init__(self, path: Path, *, descriptor: int, mapping: mmap.mmap, size_bytes: int, header: Header) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.header = header
        self._descriptor = descriptor
        self._mapping: mmap.mmap | None = mapping

    def __repr__(self) -> str:
        return f"GgufPart({self.path.name!r}, {self.size_bytes} bytes)"

    @property
    def metadata(self) -> Metadata:
        """The keys of this part."""
        return self.header.metadata

    def view(self, offset: int, size_bytes: int) -> NDArray[np.uint8]:
        """Bytes of the file as a read-only array, uint8 [size_bytes].

        A file that lost its tail would end the process with SIGBUS when touched, so its size is compared each time.

        Raises:
            ModelFileError: closed, or shorter than when it was opened.
        """
        import numpy as np

        if self._mapping is None:
            raise ModelFileError(f"{self.path.name}: already closed; open the model again")
        self.check_size()
        return np.frombuffer(self._mapping, dtype=np.uint8, count=size_bytes, offset=offset)

    def check_size(self) -> None:
        """Compares the file's size with that at open.

        Raises:
            ModelFileError: it is now shorter.
        """
        now = os.fstat(self._descriptor).st_size
        if now < self.size_bytes:
            raise ModelFileError(
                f"{self.path.name}: had {self.size_bytes} bytes when it was opened and has {now} now",
                hint="do not change the file while the program runs; restore it and start again",
            )

    def is_written_from(self, offset: int) -> bool:
        """Whether any byte at or after the offset was ever written; a sparse file has tails that were not."""
        try:
            os.lseek(self._descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            return error.errno != errno.ENXIO
        return True

    def close(self) -> None:
        """Unmaps and closes the file; views that are still alive keep the mapping until they go."""
        if self._mapping is None:
            return
        mapping, self._mapping = self._mapping, None
        os.close(self._descriptor)
        try:
            mapping.close()
        except BufferError:
            pass  # a view of it is alive; the mapping goes with the last one


@dataclass(frozen=True)
class OpenedPart:
    """A part with its usable tensors, and those it cannot use."""

    part: GgufPart
    tensors: tuple[TensorInfo, ...]
    unusable: tuple[Unusable, ...]


def open_part(path: Path) -> OpenedPart:
    """Opens, maps and judges one file.

    Raises:
        ModelFileError: it cannot be opened or is no GGUF that can be used; types are the caller's to refuse.
    """
    where = path.name
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be opened: {error.strerror}", hint="check model.path") from error
    try:
        return _map(path, descriptor, where)
    except BaseException:
        os.close(descriptor)
        raise


def _map(path: Path, descriptor: int, where: str) -> OpenedPart:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise ModelFileError(f"{path}: not a regular file; give the first GGUF part or a folder with one model")
    size = status.st_size
    if size == 0:
        raise ModelFileError(f"{where}: the file is empty; download the model file itself")
    try:
        mapping = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: cannot be mapped into memory: {error}") from error
    try:
        with memoryview(mapping) as data:
            header = parse_header(data, where=where)
        directory = judge(header, size_bytes=size, where=where)
        part = GgufPart(path, descriptor=descriptor, mapping=mapping, size_bytes=size, header=header)
        part.check_size()
    except BaseException:
        mapping.close()
        raise
    tensors = tuple(
        TensorInfo(t.name, t.dims[::-1], t.type, t.byte_count, part, t.offset) for t in directory.placed
    )
    return OpenedPart(part, tensors, directory.unusable)
