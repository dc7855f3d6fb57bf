"""Owns what the server sees of the start-up: how far it is, and each part as soon as it is there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from appliance.engine.handle import EngineHandle, SamplingParams
from appliance.errors import ExitCode, NotReadyError
from appliance.examine import Examined
from appliance.log import say, warn
from appliance.model.qwen4exp.spec import SamplingDefaults
from appliance.placed import Placement
from appliance.rig.describe import value_text
from appliance.rig.fields import Table
from appliance.rig.schema import BUILTIN, TABLES, SamplingTable
from appliance.server.backend import ModelCard, Readiness, RigSummary, Setting, TextStack

# Models carry no date; a constant keeps /v1/models the same over restarts.
CREATED = 1_767_225_600
HIDDEN = frozenset({"server.keys_file"})


class ApplianceBackend:
    """One appliance. Written by the loading thread, read by the event loop; each part is replaced as a whole."""

    def __init__(self, examined: Examined, *, on_fault: Callable[[], None]) -> None:
        """Begins as loading.

        Args:
            examined: what is known before loading.
            on_fault: ends the process; any thread.
        """
        self._examined = examined
        self._on_fault = on_fault
        self._lock = threading.Lock()
        # Readiness is open to everybody: it says what computes; why is for the log and the status page.
        on_cpu = bool(examined.device.note) and not examined.device.cards
        device = _device(examined.placement) + (": the built-in model runs on the CPU" if on_cpu else "")
        self._readiness = Readiness(stage="opening the model", percent=0, ready=False, device=device)
        self._handle: EngineHandle | None = None
        self._text: TextStack | None = None
        self._card = _model_card(examined)
        self._defaults = _sampling(examined.loaded.rig.sampling, examined.spec.sampling)
        self._summary = _summary(examined)

    def readiness(self) -> Readiness:
        """See Backend."""
        return self._readiness

    def engine(self) -> EngineHandle:
        """See Backend."""
        if self._handle is None:
            raise NotReadyError(f"the model is not ready: {self._readiness.stage}, {self._readiness.percent} %")
        return self._handle

    def text(self) -> TextStack:
        """See Backend."""
        if self._text is None:
            raise NotReadyError(f"the model is not ready: {self._readiness.stage}, {self._readiness.percent} %")
        return self._text

    def model(self) -> ModelCard:
        """See Backend."""
        return self._card

    def sampling_defaults(self) -> SamplingParams:
        """See Backend."""
        return self._defaults

    def rig_summary(self) -> RigSummary:
        """See Backend."""
        return self._summary

    def report_silence(self, sentence: str) -> None:
        """See Backend."""
        self.fail(sentence)

    def advance(self, stage: str, percent: int) -> None:
        """The start-up goes on; a percentage never falls, and nothing follows a fault or a stop."""
        with self._lock:
            if self._readiness.fault is None and self._readiness.stage != "stopping":
                percent = max(percent, self._readiness.percent)
                if stage != self._readiness.stage:
                    say("loading", stage=stage, percent=percent)
                self._change(stage=stage, percent=percent, ready=False)

    def give_text(self, text: TextStack) -> None:
        """Tokenizer and template are there."""
        self._text = text

    def give_engine(self, handle: EngineHandle) -> None:
        """The engine runs: requests are answered from here on."""
        with self._lock:
            self._handle = handle
            if self._readiness.fault is None and self._readiness.stage != "stopping":
                self._change(stage="ready", percent=100, ready=True)

    def stopping(self) -> None:
        """No request is taken any more."""
        with self._lock:
            if self._readiness.fault is None:
                self._change(stage="stopping", percent=self._readiness.percent, ready=False)

    def fail(self, sentence: str) -> None:
        """The engine is lost: readiness says so and the process ends; the first fault stands."""
        with self._lock:
            first = self._readiness.fault is None
            if first:
                self._change(stage="fault", percent=self._readiness.percent, ready=False, fault=sentence)
        if first:
            warn("fault", sentence=sentence, exit_code=int(ExitCode.FAULT))
            self._on_fault()

    def _change(self, *, stage: str, percent: int, ready: bool, fault: str | None = None) -> None:
        device = self._readiness.device
        self._readiness = Readiness(stage=stage, percent=percent, ready=ready, device=device, fault=fault)


def _device(placement: Placement) -> str:
    """What computes, as torch numbers it."""
    return ", ".join(f"cuda:{number}" for number in range(len(placement.stages))) or placement.device


def _model_card(examined: Examined) -> ModelCard:
    rig, spec = examined.loaded.rig.model, examined.spec
    kind = "the small built-in demonstration model" if rig.path == BUILTIN else spec.name
    return ModelCard(
        id=rig.name or spec.name.lower().replace(" ", "-"),
        aliases=rig.aliases,
        context_tokens=examined.placement.max_tokens,
        created=CREATED,
        description=f"{kind}, text only",
        stop_token_ids=spec.stop_token_ids,
        draft_note=spec.draft_note,
    )


def _sampling(rig: SamplingTable, model: SamplingDefaults) -> SamplingParams:
    """What a bare request gets: the rig's value, else the model's, else off."""
    off = SamplingParams()

    def first(name: str) -> Any:
        values = (getattr(rig, name), getattr(model, name), getattr(off, name))
        return next(value for value in values if value is not None)

    return SamplingParams(
        temperature=first("temperature"), top_p=first("top_p"), top_k=int(first("top_k")), min_p=first("min_p")
    )


def _summary(examined: Examined) -> RigSummary:
    loaded, placement = examined.loaded, examined.placement
    settings: dict[str, Setting] = {}
    for table_name, table in TABLES.items():
        for key in table.model_fields:
            dotted = f"{table_name}.{key}"
            if table_name != "machine" and dotted not in HIDDEN and loaded.origin(dotted).kind != "default":
                settings[dotted] = _setting(table, key, getattr(getattr(loaded.rig, table_name), key))
    settings |= {
        "plan.device": _device(placement),
        "plan.parallel": placement.parallel,
        "plan.max_tokens": placement.max_tokens,
        "plan.total_bytes": placement.total_bytes,
        "plan.budget_bytes": placement.budget_bytes,
    }
    settings |= {
        f"plan.card_{number}": f"card {stage.card.index}, {stage.card.name}, {stage.card.bus_id}: "
        f"layers {stage.first_layer} to {stage.past_layer - 1}"
        for number, stage in enumerate(placement.stages)
    }
    if placement.notes:
        settings["plan.note"] = "; ".join(placement.notes)
    return RigSummary(path=str(loaded.path) if loaded.path else None, settings=settings)


def _setting(table: type[Table], key: str, value: object) -> Setting:
    """Numbers and switches as they are; sizes, lists and texts as text."""
    text = value_text(table, key, value)
    return value if isinstance(value, (bool, int, float)) and not text.startswith('"') else text.strip('"')
