"""Drives a running server with the official `openai` package: `python -m tests.clients.openai_client URL [--key KEY]`.

Chat, stream, stop, log-probabilities, usage, errors, wrong key (when keys are on), 429 and disconnect; one line each,
exit 1 at the first that fails. --queue-limit says how many requests the server lets wait, to provoke the 429.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
from openai import AsyncOpenAI, OpenAI

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
STORY: list[Any] = [{"role": "user", "content": "Tell me a long story about a fox."}]


class Script:
    """The checks, each a method that raises AssertionError."""

    def __init__(self, url: str, key: str, *, keys_on: bool, queue_limit: int) -> None:
        self.url = url.rstrip("/") + "/v1"
        self.key = key
        self.keys_on = keys_on
        self.queue_limit = queue_limit
        self.client = OpenAI(base_url=self.url, api_key=key, max_retries=0, timeout=600)
        self.model = self.client.models.list().data[0].id

    def ask(self, **options: Any) -> Any:
        return self.client.chat.completions.create(
            **{"model": self.model, "messages": QUESTION, "temperature": 0, "max_tokens": 40, **options}
        )

    def chat(self) -> None:
        answer = self.ask()
        assert "Paris" in answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "stop"

    def stream(self) -> None:
        whole = self.ask().choices[0].message.content
        chunks = list(self.ask(stream=True))
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
        assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]

    def stop(self) -> None:
        answer = self.ask(stop=["Paris"])
        assert "Paris" not in answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "stop"
        assert self.ask(max_tokens=3).choices[0].finish_reason == "length"

    def logprobs(self) -> None:
        content = self.ask(logprobs=True, top_logprobs=3).choices[0].logprobs.content
        assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in content)
        assert all(token.top_logprobs[0].logprob >= token.logprob - 1e-4 for token in content)
        scored = self.client.completions.create(
            model=self.model, prompt="Hello there", max_tokens=0, echo=True, logprobs=1
        )
        assert scored.choices[0].text == "Hello there"
        assert scored.choices[0].logprobs.token_logprobs[0] is None  # type: ignore[union-attr, index]

    def usage(self) -> None:
        usage = self.ask().usage
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0
        last = list(self.ask(stream=True, stream_options={"include_usage": True}))[-1]
        assert last.choices == []
        assert last.usage.completion_tokens == usage.completion_tokens

    def choices_and_seed(self) -> None:
        two = self.ask(n=2, temperature=1.0, seed=7).choices
        assert len(two) == 2
        assert [c.message.content for c in two] == [
            c.message.content for c in self.ask(n=2, temperature=1.0, seed=7).choices
        ]

    def errors(self) -> None:
        wrong: list[tuple[dict[str, Any], type[openai.APIStatusError], str | None]] = [
            ({"model": "gpt-nothing"}, openai.NotFoundError, "model"),
            ({"messages": []}, openai.BadRequestError, "messages"),
            ({"temperature": 3}, openai.BadRequestError, "temperature"),
            ({"extra_body": {"invented": 1}}, openai.BadRequestError, "invented"),
            ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "response_format"),
            ({"messages": [{"role": "user", "content": "word " * 9000}]}, openai.BadRequestError, "messages"),
        ]
        for options, kind, param in wrong:
            error = _raised(kind, lambda options=options: self.ask(**options))
            assert error.message, options
            assert error.param == param or error.code == "context_length_exceeded", (options, error.param, error.code)

    def wrong_key(self) -> None:
        if not self.keys_on:
            return
        other = OpenAI(base_url=self.url, api_key="wrong", max_retries=0)
        assert _raised(openai.AuthenticationError, other.models.list).status_code == 401

    def too_many(self) -> None:
        asyncio.run(self._too_many())

    async def _too_many(self) -> None:
        """Fills the slots and the queue; the next is refused at once, with when to come back."""
        slots = len(self._status()["slots"])
        async with AsyncOpenAI(base_url=self.url, api_key=self.key, max_retries=0, timeout=600) as client:

            async def one() -> int:  # 0, or the seconds to wait
                try:
                    options: Any = {
                        "messages": STORY,
                        "temperature": 0,
                        "max_tokens": 60,
                        "extra_body": {"ignore_eos": True},
                    }
                    await client.chat.completions.create(model=self.model, **options)
                except openai.RateLimitError as error:
                    return int(error.response.headers["retry-after"])
                return 0

            answers = await asyncio.gather(*(one() for _ in range(slots + self.queue_limit + 4)))
        assert max(answers) >= 1, "no 429 with Retry-After"
        assert answers.count(0) >= slots

    def disconnect(self) -> None:
        """A closed stream frees its slot within a second."""
        stream = self.ask(messages=STORY, stream=True, max_tokens=2000, extra_body={"ignore_eos": True})
        for number, _ in enumerate(stream):
            if number == 5:
                break
        assert self._busy() == 1
        stream.close()
        end = time.monotonic() + 1
        while self._busy():
            assert time.monotonic() < end, "the slot is still taken a second after the client left"
            time.sleep(0.02)

    def _busy(self) -> int:
        return sum(slot["state"] != "free" for slot in self._status()["slots"])

    def _status(self) -> dict[str, Any]:
        answer = httpx.get(self.url + "/status", headers={"Authorization": f"Bearer {self.key}"})
        answer.raise_for_status()
        return dict(answer.json())


def _raised(kind: type[openai.APIStatusError], call: Callable[[], object]) -> openai.APIStatusError:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


CHECKS = (
    "chat",
    "stream",
    "stop",
    "logprobs",
    "usage",
    "choices_and_seed",
    "errors",
    "wrong_key",
    "too_many",
    "disconnect",
)


def main() -> int:
    """Runs every check."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("url")
    options.add_argument("--key", default="none")
    options.add_argument("--keys-on", action="store_true", help="the server wants keys: try a wrong one")
    options.add_argument("--queue-limit", type=int, default=32)
    given = options.parse_args()
    script = Script(given.url, given.key, keys_on=given.keys_on, queue_limit=given.queue_limit)
    for name in CHECKS:
        begin = time.monotonic()
        getattr(script, name)()
        print(f"ok  {name:<17} {time.monotonic() - begin:6.2f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
