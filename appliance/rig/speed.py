"""Owns measuring RAM and storage: bounded in time and memory, past the page cache, reading only where it can."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from appliance.rig.rates import Reading
from appliance.rig.size import GIB, MIB, format_size

SHARE = 10  # of free memory and free disk, one part in this many
RAM_BYTES = 256 * MIB  # far above any cache
RAM_S = 1.0
BLOCK_BYTES = 4 * MIB
ROW_BYTES = 4096
DEPTH = 64
STORAGE_S = 2.0
# A file of our own is small: only where the folder holds no model yet.
SCRATCH_BYTES = 256 * MIB
LEAST_BYTES = 16 * MIB
LEAST_ROWS = 32

Clock = Callable[[], float]


def measure_ram(free_bytes: int, *, threads: int, clock: Clock = time.perf_counter) -> Reading:
    """RAM bandwidth: bytes read and written by copies of every usable core at once.

    Args:
        free_bytes: of which a tenth is used.
        threads: usable cores.
        clock: seconds; tests give their own.
    """
    import numpy as np

    size = min(RAM_BYTES, free_bytes // SHARE // 2)
    if size < LEAST_BYTES:
        return Reading(None, f"a tenth of the free RAM is under {format_size(2 * LEAST_BYTES)}")
    share = size // threads // 8
    sources = [np.ones(share) for _ in range(threads)]
    targets = [np.empty(share) for _ in range(threads)]
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(np.copyto, targets, sources))  # the first touch gives the pages
        began = clock()
        while clock() - began < RAM_S:
            before = clock()
            list(pool.map(np.copyto, targets, sources))
            best = max(best, 2 * share * 8 * threads / max(clock() - before, 1e-9))
    return Reading.of(round(best / 1e9, 1))


def measure_storage(
    folder: Path, free_bytes: int | None, *, clock: Clock = time.perf_counter
) -> tuple[Reading, Reading]:
    """(sequential GB/s, random 4 KiB reads a second at queue depth 64), past the page cache.

    The largest file of the folder is read; without one, a scratch file is written and removed.
    """
    try:
        with _file(folder, free_bytes) as path, _direct(path) as descriptor:
            size = os.fstat(descriptor).st_size // BLOCK_BYTES * BLOCK_BYTES
            return _sequential(descriptor, size, clock), _random_rows(descriptor, size, clock)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            reason = "this file system cannot be read past the page cache (no O_DIRECT)"
        else:
            reason = str(error.strerror or error).lower()
        return Reading(None, reason), Reading(None, reason)


@contextlib.contextmanager
def _file(folder: Path, free_bytes: int | None) -> Iterator[Path]:
    largest = max(_files(folder), key=lambda found: found[0], default=None)
    if largest is not None and largest[0] >= LEAST_BYTES:
        yield largest[1]
        return
    size = min(SCRATCH_BYTES, (free_bytes or 0) // SHARE) // BLOCK_BYTES * BLOCK_BYTES
    if size < LEAST_BYTES:
        raise OSError(errno.ENOSPC, "no large file in the folder, and too little space to write one")
    if not os.access(folder, os.W_OK):
        raise OSError(errno.EACCES, "no large file in the folder, and it is not writable for one")
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".strata-probe-") as scratch:
        block = os.urandom(BLOCK_BYTES)  # what a disk cannot compress away
        for _ in range(size // BLOCK_BYTES):
            scratch.write(block)
        scratch.flush()
        os.fsync(scratch.fileno())
        yield Path(scratch.name)


def _files(folder: Path) -> Iterator[tuple[int, Path]]:
    if folder.is_file():
        folder = folder.parent
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.is_file() and os.access(path, os.R_OK):
                yield path.stat().st_size, path


@contextlib.contextmanager
def _direct(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0) | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sequential(descriptor: int, size: int, clock: Clock) -> Reading:
    read = 0
    with mmap.mmap(-1, BLOCK_BYTES) as buffer:  # aligned to pages, as O_DIRECT wants
        began = clock()
        while (took := clock() - began) < STORAGE_S and read < 8 * GIB:
            read += os.preadv(descriptor, [buffer], read % size)
    return Reading.of(round(read / max(took, 1e-9) / 1e9, 3))


def _random_rows(descriptor: int, size: int, clock: Clock) -> Reading:
    rows = size // ROW_BYTES
    end = clock() + STORAGE_S

    def reader(seed: int) -> int:
        draw = random.Random(seed)
        done = 0
        with mmap.mmap(-1, ROW_BYTES) as buffer:
            while clock() < end:
                os.preadv(descriptor, [buffer], draw.randrange(rows) * ROW_BYTES)
                done += 1
        return done

    began = clock()
    with ThreadPoolExecutor(DEPTH) as pool:
        done = sum(pool.map(reader, range(DEPTH)))
    took = max(clock() - began, 1e-9)
    if done < LEAST_ROWS:
        return Reading(None, f"only {done} reads came back in {took:.1f} s")
    return Reading.of(round(done / took))
