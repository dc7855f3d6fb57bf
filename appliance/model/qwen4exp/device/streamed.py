"""Where a stage's launches go: its device, and a stream of its own where several stages compute side by side."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


class Streamed:
    """Launches on the current stream until it is given one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream: torch.cuda.Stream | None = None

    def take_stream(self) -> None:
        """Gives the stage a stream of its own, once it is loaded; until then everything is on the current one."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def on(self) -> AbstractContextManager[object]:
        """Whatever is launched for the stage is launched in here: on its device and its stream."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def follow(self) -> None:
        """What is launched on the stage from now on comes after what the current stream has."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def lead(self, made: torch.Tensor) -> None:
        """What is launched on the current stream from now on, to use what the stage made, comes after it."""
        if self.stream is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self.stream)
            made.record_stream(current)
