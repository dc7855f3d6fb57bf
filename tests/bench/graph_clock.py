"""Owns how long a replay of launches takes on a card."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

REPLAYS, WARM = 13, 3


def graph_seconds(run: Callable[[], None]) -> float:
    """Median seconds of a replay of what `run` launches, the first few replays left out."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times[WARM:])
