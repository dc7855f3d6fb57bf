"""Owns a prompt in parts, as windows read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def in_parts(ids: Sequence[int], parts: Sequence[int], *, following: int) -> Iterator[tuple[Sequence[int], int]]:
    """(ids, the id after them) of windows of these lengths, the last repeated; `following` comes after the prompt."""
    done, sizes = 0, list(parts)
    while done < len(ids):
        stop = min(done + (sizes.pop(0) if len(sizes) > 1 else sizes[0]), len(ids))
        yield ids[done:stop], int(ids[stop]) if stop < len(ids) else following
        done = stop
