"""The launches of one stage: recorded at their first use and replayed, or one by one where that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from appliance.model.qwen4exp.device.stage import Stage

Launch = Callable[[], None]


class StageGraphs:
    """Owned by the engine's thread. The memory that a graph saw never moves.

    Graphs share the memory of what lives between their launches alone: they run one after the other.
    """

    def __init__(self, stage: Stage, *, plain: bool) -> None:
        """Nothing recorded; `plain` and devices without graphs launch one by one."""
        self._stage = stage
        self._recording = stage.device.type == "cuda" and not plain
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._side: torch.cuda.Stream | None = None
        self._pool: torch.cuda._POOL_HANDLE | None = None

    @property
    def captured(self) -> int:
        """Graphs so far."""
        return len(self._graphs)

    def missing(self, key: Hashable) -> bool:
        """Whether `run` needs a graph that `prepare` has yet to record."""
        return self._recording and key not in self._graphs

    def run(self, key: Hashable, launch: Launch) -> None:
        """Does what `launch` does; on the stage's stream, after `prepare` of the same key."""
        if self._recording:
            self._graphs[key].replay()
        else:
            launch()

    def prepare(self, key: Hashable, rows: int, launch: Launch) -> None:
        """Runs the launches once over a window without rows, which compiles them and changes nothing; then records.

        Waits for the device, so it is called before anything of a window is on its way.

        Args:
            key: of the graph; missing.
            rows: bucket of the window.
            launch: what to record.
        """
        stage = self._stage
        if self._side is None:
            self._side = torch.cuda.Stream(stage.device)  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize(stage.device)
        with torch.cuda.stream(self._side):
            stage.bucket(rows)[0].plan.zero_()
            launch()
        torch.cuda.synchronize(stage.device)
        self._graphs[key] = record(launch, stage.device, side=self._side, pool=self._pool)


def record(
    launch: Launch, device: torch.device, *, side: torch.cuda.Stream, pool: torch.cuda._POOL_HANDLE | None = None
) -> torch.cuda.CUDAGraph:
    """Records launches that have run before; `pool`: memory that graphs share, or its own."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=side):
        launch()
    torch.cuda.synchronize(device)
    return graph
