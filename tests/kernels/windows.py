"""Builds decode windows by hand, for tests of kernels that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.window import WindowRows


@dataclass(frozen=True)
class Span:
    """Rows of one slot: `count` of them from position `start`, of which `certain` are no drafts."""

    slot: int
    start: int
    count: int
    certain: int
    tokens: tuple[int, ...] = ()


def window_rows(spans: Sequence[Span], *, bucket: int, slots: int, device: str) -> WindowRows:
    """Metadata of a window of these spans in a bucket of `bucket` rows; the dummy slot is number `slots`."""
    names = ("span_slot", "span_first", "span_count", "span_start", "span_certain")
    columns: dict[str, list[int]] = {name: [] for name in ("tokens", "slot", "position", "span", *names)}
    for number, span in enumerate(spans):
        first = len(columns["slot"])
        columns["tokens"] += span.tokens or [0] * span.count
        columns["slot"] += [span.slot] * span.count
        columns["position"] += range(span.start, span.start + span.count)
        columns["span"] += [number] * span.count
        for name, value in zip(names, (span.slot, first, span.count, span.start, span.certain), strict=True):
            columns[name].append(value)
    used = len(columns["slot"])
    fill = {"slot": slots, "span_slot": slots}
    tensors = {}
    for name, values in columns.items():
        values = values + [fill.get(name, 0)] * (bucket - len(values))
        tensors[name] = torch.tensor(values, dtype=torch.int32, device=device)
    return WindowRows(
        **tensors,
        rows_used=torch.tensor([used], dtype=torch.int32, device=device),
        spans_used=torch.tensor([len(spans)], dtype=torch.int32, device=device),
    )


class Float64:
    """A context in which plain references, which make new tensors, compute in float64."""

    def __enter__(self) -> None:
        self._before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(self._before)


def early(device: str) -> bool:
    """Whether launches may start before the one before has ended: on a card that can."""
    return device == "cuda" and torch.cuda.get_device_capability()[0] >= 9
