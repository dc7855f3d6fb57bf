"""Which kernels a window's time goes to, by torch's profiler; on cards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """One kernel, or one kind of copy.

    Attributes:
        name: as the driver has it.
        launches: a window, on average.
        microseconds: a window, all launches together.
        share: of all kernels' time.
    """

    name: str
    launches: float
    microseconds: float
    share: float


@contextmanager
def recorded() -> Iterator[profile]:
    """Records what cards do, whichever thread gave it to them."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        yield found


def table(found: profile, *, windows: int, most: int = 25) -> list[KernelTime]:
    """The kernels that took longest.

    Args:
        found: what was recorded.
        windows: that ran meanwhile.
        most: lines.
    """
    times: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    events: Any = found.events()  # type: ignore[no-untyped-call]
    for event in events or ():
        if event.device_type.name == "CUDA":
            times[event.name] += event.device_time_total
            launches[event.name] += 1
    total = sum(times.values())
    return [
        KernelTime(name=name, launches=launches[name] / windows, microseconds=time / windows, share=time / total)
        for name, time in times.most_common(most)
    ]
