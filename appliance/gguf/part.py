"""One GGUF file on disk: opened, mapped read-only, its header parsed and judged."""

from __future__ import annotations

import contextlib
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
    """One mapped file, or the bytes of one. Made by `open_part` or `part_of_bytes`; closed by the set that owns it."""

    def __init__(
        self, path: Path, *, descriptor: int | None, content: mmap.mmap | bytes, size_bytes: int, header: Header
    ) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.header = header
        self._descriptor = descriptor
        self._content: mmap.mmap | bytes | None = content

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

        if self._content is None:
            raise ModelFileError(f"{self.path.name}: already closed; open the model again")
        self.check_size()
        return np.frombuffer(self._content, dtype=np.uint8, count=size_bytes, offset=offset)

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fills the target with bytes of the file, not through its mapping. Any thread may; others run meanwhile.

        Raises:
            ModelFileError: closed, shorter than when it was opened, or not readable.
        """
        if self._content is None:
            raise ModelFileError(f"{self.path.name}: already closed; open the model again")
        if self._descriptor is None:
            target[:] = memoryview(self._content)[offset : offset + len(target)]
            return
        done = 0
        while done < len(target):
            try:
                count = os.preadv(self._descriptor, [target[done:]], offset + done)
            except OSError as error:
                raise ModelFileError(f"{self.path}: cannot be read at {offset + done}: {error.strerror}") from error
            if not count:
                self.check_size()
                raise ModelFileError(f"{self.path.name}: ends at {offset + done}, before the bytes of its tensors")
            done += count

    def check_size(self) -> None:
        """Compares the file's size with that at open.

        Raises:
            ModelFileError: it is now shorter.
        """
        if self._descriptor is None:
            return
        now = os.fstat(self._descriptor).st_size
        if now < self.size_bytes:
            raise ModelFileError(
                f"{self.path.name}: had {self.size_bytes} bytes when it was opened and has {now} now",
                hint="do not change the file while the program runs; restore it and start again",
            )

    def is_written_from(self, offset: int) -> bool:
        """Whether any byte at or after the offset was ever written; a sparse file has tails that were not."""
        if self._descriptor is None:
            return True
        try:
            os.lseek(self._descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            return error.errno != errno.ENXIO
        return True

    def close(self) -> None:
        """Unmaps and closes the file; views that are still alive keep the mapping until they go."""
        content, self._content = self._content, None
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
        if isinstance(content, mmap.mmap):
            with contextlib.suppress(BufferError):  # a view is alive; the mapping goes with the last one
                content.close()


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
        return _judged(path, mapping, size_bytes=size, descriptor=descriptor)
    except BaseException:
        mapping.close()
        raise


def part_of_bytes(data: bytes, *, name: str) -> OpenedPart:
    """Judges a part that is in memory; its tensors are views of the bytes.

    Raises:
        ModelFileError: as `open_part`.
    """
    return _judged(Path(name), data, size_bytes=len(data), descriptor=None)


def _judged(path: Path, content: mmap.mmap | bytes, *, size_bytes: int, descriptor: int | None) -> OpenedPart:
    with memoryview(content) as data:
        header = parse_header(data, where=path.name)
    directory = judge(header, size_bytes=size_bytes, where=path.name)
    part = GgufPart(path, descriptor=descriptor, content=content, size_bytes=size_bytes, header=header)
    part.check_size()
    tensors = tuple(TensorInfo(t.name, t.dims[::-1], t.type, t.byte_count, part, t.offset) for t in directory.placed)
    return OpenedPart(part, tensors, directory.unusable)
