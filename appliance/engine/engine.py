"""The engine as a whole: starts the thread that owns the device, takes requests, drains, stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from appliance.engine.config import EngineConfig
from appliance.engine.handle import EngineHandle
from appliance.model.interface import LoadedModel


class Engine:
    """One loaded model serving up to `config.slots` conversations together."""

    def __init__(self, model: LoadedModel, config: EngineConfig, *, on_fault: Callable[[str], None]) -> None:
        """Builds the engine; nothing runs yet.

        Args:
            model: weights and slots; only the engine's thread touches it after `start`.
            config: sizes and bounds.
            on_fault: called once, on the event loop, after every stream was ended by a fault; gets one sentence.
        """
        self._model = model
        self._config = config
        self._on_fault = on_fault

    @property
    def handle(self) -> EngineHandle:
        """What the server uses; valid from construction, takes requests from `start` to `drain`."""
        ...

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Checks the model with two short prompts (GGUF-17), then starts the engine's thread.

        Blocks for the check, so call it where the model was loaded; events are delivered on `loop`.

        Raises:
            ModelFileError: the model ignores its prompt or computes non-finite logits.
        """
        ...

    def drain(self, deadline_s: float) -> None:
        """Takes no more requests and ends those it has; returns at once.

        Waiting requests end now, running ones may finish until `deadline_s` from now; what is left then ends with
        FinishReason.CANCELLED. Later submits raise NotReadyError.
        """
        ...

    def stop(self) -> None:
        """Ends every stream (CANCELLED) and the thread; safe to repeat and after a fault. Blocks for one window."""
        ...
