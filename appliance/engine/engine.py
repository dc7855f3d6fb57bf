"""The engine as a whole: starts the thread that owns the device, takes requests, drains, stops."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable

from appliance.engine.ahead import AheadLoop
from appliance.engine.board import Board
from appliance.engine.config import EngineConfig
from appliance.engine.delivery import Delivery
from appliance.engine.flights import AheadStepper
from appliance.engine.handle import EngineHandle
from appliance.engine.loop import EngineLoop
from appliance.engine.pipelined import FlyingStepper, PipelinedLoop
from appliance.engine.selftest import check_model
from appliance.engine.steps import stepper_of
from appliance.engine.watchdog import Watchdog
from appliance.model.interface import AheadModel, CardModel, LoadedModel, StagedModel, StepModel
from appliance.scheduler.pages import PagePool
from appliance.scheduler.queue import RequestQueue
from appliance.scheduler.scheduler import Scheduler

# A thread that does not end in this time is stuck in the device; it is a daemon, so the process can still exit.
_STOP_TIMEOUT_S = 10.0

# A drain's deadline passes inside a window; clients wait this much longer for its tokens and no more.
_LATE_S = 0.25

# How long the event loop may keep the interpreter once the device has finished a window. With Python's 5 ms, and eight
# streaming clients, one window in a hundred was noticed 0.4 to 1 ms late (`tests.bench.host_time`), with this 0.08 ms.
# Nor is it longer until the next launch: every call of the driver lets the interpreter go, and would wait for it then.
_SWITCH_S = 1e-5


class Engine:
    """One loaded model serving up to `config.slots` conversations together."""

    def __init__(self, model: LoadedModel, config: EngineConfig, *, on_fault: Callable[[str], None]) -> None:
        """Builds the engine; nothing runs yet.

        Args:
            model: weights and slots; only the engine's thread touches it after `start`.
            config: sizes and bounds. Drafts are off where the model cannot draft.
            on_fault: called once, on the event loop, after every stream was ended by a fault; gets one sentence.
        """
        self._model = model
        self._config = config
        queue = RequestQueue(config.queue_limit, slots=config.slots)
        staged = isinstance(model, StagedModel) and model.reads > 0
        limits = config.limits(vocabulary=model.vocabulary, can_draft=model.can_draft, staged=staged)
        scheduler = Scheduler(limits, queue=queue, pages=PagePool(config.pages, page_tokens=config.page_tokens))
        board = _board_of(model)
        self._delivery = Delivery(
            config,
            vocabulary=model.vocabulary,
            queue=queue,
            status=board.picture(scheduler),
            on_fault=on_fault,
            gaps=model.gaps if isinstance(model, StepModel) else None,
        )
        self._watchdog = Watchdog(config.watchdog_s, on_silence=self._delivery.fail)
        self._loop = _loop_of(model, scheduler, delivery=self._delivery, board=board, watchdog=self._watchdog)
        self._thread = threading.Thread(target=self._loop.run, name="engine", daemon=True)

    @property
    def handle(self) -> EngineHandle:
        """What the server uses; valid from construction, takes requests from `start` to `drain`."""
        return self._delivery

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Checks the model with two short prompts (GGUF-17), then starts the engine's thread.

        Blocks for the check, so call it where the model was loaded; events are delivered on `loop`.

        Raises:
            ModelFileError: the model ignores its prompt or computes non-finite logits.
        """
        self._open(loop)
        self._thread.start()

    def run(self, loop: asyncio.AbstractEventLoop, *, ready: Callable[[], None]) -> None:
        """`start`, but the calling thread becomes the engine's; returns when the engine has stopped.

        On the CPU the thread that loads the model should be the one that runs it: OpenMP keeps a team of threads for
        every thread that ever computed, and with two teams on the cores each of them waits at half the speed.

        Args:
            loop: where events are delivered.
            ready: called once the check has passed and requests are taken.

        Raises:
            ModelFileError: as `start`.
        """
        self._thread = threading.current_thread()
        self._open(loop)
        ready()
        self._loop.run()

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        check_model(self._model, self._config)
        sys.setswitchinterval(_SWITCH_S)
        self._delivery.open(loop)
        self._watchdog.start()

    def drain(self, deadline_s: float) -> None:
        """Takes no more requests and ends those it has; any thread, returns at once.

        Waiting requests end now, running ones may finish until `deadline_s` from now; what is left then ends with
        FinishReason.CANCELLED. Later submits raise NotReadyError.
        """
        self._delivery.close("the server is shutting down and takes no more requests")
        self._loop.drain(deadline_s)
        self._delivery.end_in(deadline_s + _LATE_S)

    def end(self) -> None:
        """`stop` that does not wait: `run` returns after the current window; any thread."""
        self._loop.stop()
        self._delivery.close("the engine has stopped")

    def stop(self) -> None:
        """Ends every stream (CANCELLED) and the thread; from any other thread, safe to repeat and after a fault.

        Blocks for the rest of the current window, for ten seconds at most.
        """
        self.end()
        if self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT_S)


def _board_of(model: LoadedModel) -> Board:
    return Board(
        stages=(lambda: model.stages) if isinstance(model, StagedModel) else tuple,
        experts=model.report.experts if isinstance(model, CardModel) else (lambda: None),
    )


def _loop_of(
    model: LoadedModel, scheduler: Scheduler, *, delivery: Delivery, board: Board, watchdog: Watchdog
) -> EngineLoop:
    """The plain loop; the pipelined one where windows of several groups may be on their way; else the one ahead."""
    if scheduler.limits.groups > 1 and isinstance(model, StagedModel):
        stepper = FlyingStepper(model, scheduler)
        return PipelinedLoop(stepper, scheduler, delivery=delivery, board=board, watchdog=watchdog)
    if isinstance(model, AheadModel) and model.ahead:
        ahead = AheadStepper(model, scheduler)
        return AheadLoop(ahead, scheduler, delivery=delivery, board=board, watchdog=watchdog)
    return EngineLoop(stepper_of(model, scheduler), scheduler, delivery=delivery, board=board, watchdog=watchdog)
