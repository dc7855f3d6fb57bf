"""What ends the process from inside: a model that cannot be loaded, an engine that breaks while it serves."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import torch

from appliance import boot
from appliance.backend import ApplianceBackend
from appliance.errors import ExitCode, ModelFileError, NotReadyError
from appliance.examine import Examined, examine
from appliance.model import Architecture
from appliance.model.qwen4exp.load import load_model
from appliance.rig.load import load_text
from tests.builders.machines import machine
from tests.ports import free_port

LIMIT_S = 60.0


def load_refuses(*_: object, **__: object) -> object:
    raise ModelFileError("tensor x holds no number")


def load_runs_out(*_: object, **__: object) -> object:
    raise MemoryError


def load_crashes(*_: object, **__: object) -> object:
    raise RuntimeError("unexpected")


def load_loses_the_card(*_: object, **__: object) -> object:
    raise RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronously reported")


def load_fills_the_card(*_: object, **__: object) -> object:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation")


def load_breaks_later(spec: Any, *, plan: Any, progress: Any) -> Any:
    """The real model, whose third window fails: the start-up's own test takes two."""
    model = load_model(spec, plan=plan, progress=progress)
    forward, calls = model.forward, iter(range(2))

    def breaks(window: Any) -> Any:
        if next(calls, None) is None:
            raise RuntimeError("device lost")
        return forward(window)

    model.forward = breaks  # type: ignore[method-assign]
    return model


@pytest.fixture
def examined() -> Iterator[Examined]:
    text = f"[server]\nport = {free_port()}\n[serving]\nparallel = 1\n[context]\nmax_tokens = 512\n"
    found = examine(load_text(text), machine())
    yield found
    found.model.close()


def with_loader(examined: Examined, loader: Callable[..., object]) -> Examined:
    row = Architecture(spec=examined.architecture.spec, model=f"{__name__}:{loader.__name__}")
    return dataclasses.replace(examined, architecture=row)


@pytest.mark.parametrize(
    ("loader", "code"),
    [
        pytest.param(load_refuses, ExitCode.MODEL_FILE, id="model file"),
        pytest.param(load_runs_out, ExitCode.DOES_NOT_FIT, id="memory"),
        pytest.param(load_loses_the_card, ExitCode.MACHINE, id="card lost"),
        pytest.param(load_fills_the_card, ExitCode.DOES_NOT_FIT, id="card full"),
        pytest.param(load_crashes, ExitCode.FAULT, id="anything else"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_load_that_fails_ends_the_process_with_its_code(
    examined: Examined, loader: Callable[..., object], code: ExitCode
) -> None:
    assert asyncio.run(boot._run(with_loader(examined, loader))) is code


def test_an_engine_fault_ends_streams_readiness_and_process(examined: Examined) -> None:
    """An error event, /ready 503, exit 70: the supervisor starts it again."""
    url = f"http://127.0.0.1:{examined.loaded.rig.server.port}"
    seen: dict[str, object] = {}

    def ask() -> None:
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            try:
                if httpx.get(f"{url}/ready", trust_env=False).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=LIMIT_S, trust_env=False)
        seen["status"], seen["text"] = answer.status_code, answer.text

    client = threading.Thread(target=ask)
    client.start()
    code = asyncio.run(boot._run(with_loader(examined, load_breaks_later)))
    client.join(LIMIT_S)
    assert code is ExitCode.FAULT
    assert '"error"' in str(seen["text"])
    assert "device lost" not in str(seen["text"])


def test_the_backend_tells_one_fault_and_never_goes_back(examined: Examined) -> None:
    ended: list[bool] = []
    backend = ApplianceBackend(examined, on_fault=lambda: ended.append(True))
    with pytest.raises(NotReadyError, match="opening the model"):
        backend.engine()
    with pytest.raises(NotReadyError):
        backend.text()
    backend.advance("loading", 40)
    backend.advance("loading", 30)
    assert backend.readiness().percent == 40
    backend.fail("first")
    backend.report_silence("second")
    backend.advance("loading", 90)
    backend.stopping()
    state = backend.readiness()
    assert (state.stage, state.ready, state.fault, state.percent) == ("fault", False, "first", 40)
    assert ended == [True]


def test_what_a_bare_request_gets(examined: Examined) -> None:
    """The rig's value, else the model's, else off."""
    loaded = load_text('[sampling]\ntop_k = 0\n[model]\nname = "office"\naliases = ["gpt-4o"]\n')
    backend = ApplianceBackend(dataclasses.replace(examined, loaded=loaded), on_fault=lambda: None)
    defaults = backend.sampling_defaults()
    assert (defaults.temperature, defaults.top_k, defaults.min_p) == (pytest.approx(0.6), 0, 0.0)
    assert (backend.model().id, backend.model().aliases) == ("office", ("gpt-4o",))
    assert backend.model().context_tokens == 512


def test_the_summary_holds_what_the_rig_says_and_no_key_file(examined: Examined) -> None:
    loaded = load_text('[server]\nkeys_file = "/secret/keys.json"\nport = 8081\n')
    summary = ApplianceBackend(dataclasses.replace(examined, loaded=loaded), on_fault=lambda: None).rig_summary()
    assert summary.settings["server.port"] == 8081
    assert "secret" not in str(summary)
