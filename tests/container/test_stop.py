"""CTR-08: `docker stop` in every state of a request, and while the model loads."""

from __future__ import annotations

import threading
import time

import pytest
from openai import APIError, OpenAI

from tests.container.stack import container, get, port_of, stop, wait_for, wait_ready

STOP_S = 8


class Stream(threading.Thread):
    """One streamed chat; keeps what came."""

    def __init__(self, port: int, prompt: str) -> None:
        super().__init__(daemon=True)
        self.client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=60)
        self.prompt = prompt
        self.pieces = 0
        self.finish_reason: str | None = None
        self.error: APIError | None = None

    def run(self) -> None:
        try:
            for chunk in self.client.chat.completions.create(
                model=self.client.models.list().data[0].id,
                messages=[{"role": "user", "content": self.prompt}],
                max_tokens=3000 if len(self.prompt) < 1000 else 10,
                temperature=0,
                stream=True,
                extra_body={"ignore_eos": True},
            ):
                self.pieces += 1
                if chunk.choices and chunk.choices[0].finish_reason:
                    self.finish_reason = chunk.choices[0].finish_reason
        except APIError as error:
            self.error = error


def slots(port: int) -> list[str]:
    return [slot["state"] for slot in get(port, "/v1/status")[1]["slots"]]


def test_ctr_08_stop_while_one_decodes_one_reads_and_one_waits() -> None:
    with container(environment={"STRATA_SERVING__PARALLEL": "2"}) as running:
        port = wait_ready(running)
        decoding = Stream(port, "Tell me a long story about the sea.")
        decoding.start()
        wait_for(lambda: decoding.pieces > 5, "the first stream writes")
        reading = Stream(port, "The fox walked along the river and looked for the old mill. " * 200)
        reading.start()
        wait_for(lambda: slots(port).count("free") == 0, "both slots are taken")
        waiting = Stream(port, "What is the capital of France?")
        waiting.start()
        wait_for(lambda: get(port, "/v1/status")[1]["queue"]["waiting"] > 0 or not reading.is_alive(), "one waits")
        code, took_s = stop(running)
        log = running.logs().decode()
    assert code == 0, log
    assert took_s < STOP_S, log
    for stream in (decoding, reading, waiting):
        stream.join(10)
        assert not stream.is_alive()
        # An answer that has begun ends with a finish reason; one that has not may be refused instead: never silence.
        assert stream.finish_reason or stream.error, (stream.prompt[:40], log)
    assert decoding.finish_reason, (decoding.error, log)
    assert "Traceback" not in log


@pytest.mark.parametrize("after_s", [0.0, 0.7, 1.7, 3.7], ids=lambda after_s: f"after-{after_s}s")
def test_ctr_08_stop_during_start(after_s: float) -> None:
    """From its first line on; before that the kernel gives a container's first process no signal at all."""
    with container() as running:
        wait_for(lambda: b"event=start" in running.logs(), "the first line")
        begin = time.monotonic()
        wait_for(lambda: time.monotonic() - begin > after_s or get(port_of(running), "/ready")[0] == 200, "time passes")
        code, took_s = stop(running)
        log = running.logs().decode()
    assert code == 0, log
    assert took_s < STOP_S, log
    assert "Traceback" not in log
