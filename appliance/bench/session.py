"""Engines over one loaded model in this process, one after the other, on the thread that loaded it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

from appliance.engine.config import EngineConfig
from appliance.engine.engine import Engine
from appliance.engine.handle import EngineHandle
from appliance.errors import EngineFault
from appliance.model.interface import LoadedModel

Work = Callable[[EngineHandle, EngineConfig, LoadedModel], Awaitable[None]]


class Session:
    """Runs `work` against an engine of each configuration.

    The engine's thread loads the model and lives as long as the session: on the CPU a second thread that computes would
    halve the speed of the first.
    """

    def __init__(self, load: Callable[[], LoadedModel], configs: Sequence[EngineConfig]) -> None:
        """Nothing runs yet; `load` is called on the engine's thread."""
        self._load = load
        self._configs = tuple(configs)
        self._fault: BaseException | None = None
        self._over = False

    def run(self, work: Work) -> LoadedModel:
        """Loads, works through all configurations, and gives the model back.

        Raises:
            EngineFault: the engine was lost.
            ApplianceError: what loading met.
        """
        return asyncio.run(self._run(work))

    async def _run(self, work: Work) -> LoadedModel:
        loop = asyncio.get_running_loop()
        engines: asyncio.Queue[tuple[Engine, EngineConfig] | None] = asyncio.Queue()
        models: list[LoadedModel] = []

        def tell(item: tuple[Engine, EngineConfig] | None) -> None:
            loop.call_soon_threadsafe(engines.put_nowait, item)

        thread = threading.Thread(target=self._compute, args=(loop, tell, models), name="engine", daemon=True)
        thread.start()
        try:
            while (found := await engines.get()) is not None:
                engine, config = found
                try:
                    await work(engine.handle, config, models[0])
                except BaseException:
                    self._over = True
                    raise
                finally:
                    engine.end()
        finally:
            self._over = True
            await asyncio.to_thread(thread.join)
        if self._fault is not None:
            raise self._fault
        return models[0]

    def _compute(
        self,
        loop: asyncio.AbstractEventLoop,
        tell: Callable[[tuple[Engine, EngineConfig] | None], None],
        models: list[LoadedModel],
    ) -> None:
        try:
            models.append(self._load())
            for config in self._configs:
                if self._over:
                    break
                engine = Engine(models[0], config, on_fault=self._lost)
                engine.run(loop, ready=lambda engine=engine, config=config: tell((engine, config)))  # type: ignore[misc]
        except BaseException as error:
            self._fault = error
        finally:
            tell(None)

    def _lost(self, sentence: str) -> None:
        self._fault = self._fault or EngineFault(sentence)
