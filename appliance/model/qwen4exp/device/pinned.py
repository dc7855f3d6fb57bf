"""Host memory that kernels of a card read: registered as it is, without rounding it up to a power of two."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import torch

from appliance.errors import MachineError
from appliance.rig.size import format_size

_PORTABLE_MAPPED: Final = 1 | 2
_POPULATE_WRITE: Final = 23
_TOUCHERS: Final = 4
_TOUCH_BYTES: Final = 256 << 20


class HostBlock:
    """Memory of the host, page-aligned, in large pages where the kernel gives them; registered when told.

    Attributes:
        bytes: uint8 [size]. What has seen its address may read it until `release`, or until the block is dropped.
    """

    def __init__(self, size_bytes: int, *, cuda: bool) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)
        self._cuda = cuda
        self._unregister: weakref.finalize[..., HostBlock] | None = None
        if size_bytes:
            memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with contextlib.suppress(OSError):
                memory.madvise(mmap.MADV_HUGEPAGE)
            self.bytes = torch.frombuffer(memory, dtype=torch.uint8)

    def touch(self) -> None:
        """Has the kernel make the pages, with several threads: one would need a minute for a large model."""
        with ThreadPoolExecutor(_TOUCHERS, thread_name_prefix="touch") as threads:
            list(threads.map(self._touch, range(0, self.bytes.numel(), _TOUCH_BYTES)))

    def register(self, *, before: int = 0) -> None:
        """Lets cards read it; nothing to do without bytes (MEM-03).

        Args:
            before: bytes that were registered already, for the message.

        Raises:
            MachineError: the driver refuses.
        """
        size = self.bytes.numel()
        if not self._cuda or not size:
            return
        code = int(_runtime().cudaHostRegister(self.bytes.data_ptr(), size, _PORTABLE_MAPPED))
        if code:
            free = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
            raise MachineError(
                f"{format_size(size)} of RAM cannot be pinned for the card beside {format_size(before)} that are, with "
                f"{format_size(free)} free (CUDA error {code})",
                hint="raise the memory lock limit (ulimit -l, memlock in compose.yaml) or keep more on the card",
            )
        # The kernel gives the addresses of dropped memory to the next block, which the driver would refuse.
        self._unregister = weakref.finalize(self, _runtime().cudaHostUnregister, self.bytes.data_ptr())
        self._unregister.atexit = False

    def release(self) -> None:
        """Takes it from the cards again; nothing may read it any more."""
        if self._unregister is not None:
            self._unregister()
        self.bytes = torch.empty(0, dtype=torch.uint8)

    def _touch(self, at: int) -> None:
        part = self.bytes[at : at + _TOUCH_BYTES]
        # Through ctypes, which lets other threads run meanwhile; before Linux 5.14 the kernel does not know the advice.
        if ctypes.CDLL(None).madvise(ctypes.c_void_p(part.data_ptr()), ctypes.c_size_t(part.numel()), _POPULATE_WRITE):
            ctypes.memset(part.data_ptr(), 0, part.numel())


class HostPool:
    """Blocks that a thread makes ready one after the other while something else goes on."""

    def __init__(self, sizes: Sequence[int], *, cuda: bool) -> None:
        """Reserves addresses only.

        Args:
            sizes: bytes of each block.
            cuda: whether cards shall read them.
        """
        self.blocks = [HostBlock(size, cuda=cuda) for size in sizes]
        self._ready: list[Future[None]] = []
        if cuda:
            # Left to end by itself; `words` waits for what it needs.
            thread = ThreadPoolExecutor(1, thread_name_prefix="pin")
            self._ready = [thread.submit(self._prepare, number) for number in range(len(sizes))]
            thread.shutdown(wait=False)

    @property
    def size_bytes(self) -> int:
        """All blocks."""
        return sum(block.bytes.numel() for block in self.blocks)

    def words(self, number: int) -> torch.Tensor:
        """A block as int32 [words], once cards can read it.

        Raises:
            MachineError: see `HostBlock.register`.
        """
        if self._ready:
            self._ready[number].result()
        return self.blocks[number].bytes.view(torch.int32)

    def release(self) -> None:
        """Gives all back; nothing may read them any more."""
        for ready in self._ready:
            ready.exception()
        for block in self.blocks:
            block.release()

    def _prepare(self, number: int) -> None:
        block = self.blocks[number]
        block.touch()
        block.register(before=sum(one.bytes.numel() for one in self.blocks[:number]))


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
