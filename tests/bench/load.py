"""Owns the bench's client: greedy chats over HTTP streaming with as little work per token as possible.

Plain sockets, because client and server share the cores: of a stream only the first and the last events are decoded.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass

TOPICS = (
    "Tell me a short story about a fox and a lantern.",
    "What is the capital of France?",
    "Write a short e-mail to Anna that moves our meeting to Tuesday.",
    "How do I make a cup of tea?",
    "Give me a list of five animals that live in the forest.",
    "What is the opposite of cold?",
    "Write a simple poem about the sea.",
    "What are you, and what can you do?",
    "Name the months of the year.",
    "Tell me a fable about a crow and a river.",
    "What is 17 plus 25?",
    "How do I plant a tree?",
    "Say good morning in French.",
    "Write a polite answer that declines an invitation.",
    "What is a whale?",
    "Tell me a story about a girl who lost her key.",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished stream. Times in seconds since the request was sent."""

    prompt_tokens: int
    completion_tokens: int
    first_token_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """What one number of clients reached in total."""

    clients: int
    tokens: int
    wall_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.wall_s


async def chat(port: int, prompt: str, *, tokens: int) -> Answer:
    """Streams one greedy answer of exactly `tokens` tokens.

    Raises:
        RuntimeError: the server answered an error, or another number of tokens.
    """
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"enable_thinking": False},
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        begin = time.perf_counter()
        writer.write(head.encode() + body)
        status = await reader.readline()
        headers = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in status:
            raise RuntimeError(f"{status.decode().strip()}: {(await reader.read(2000)).decode(errors='replace')}")
        if b"chunked" not in headers.lower():
            raise RuntimeError("the stream is not in chunks")
        first, usage = await _events(reader, begin)
        total = time.perf_counter() - begin
    finally:
        writer.close()
    if usage["completion_tokens"] != tokens:
        raise RuntimeError(f"asked for {tokens} tokens, got {usage['completion_tokens']}")
    return Answer(usage["prompt_tokens"], usage["completion_tokens"], first, total)


async def _events(reader: asyncio.StreamReader, begin: float) -> tuple[float, dict[str, int]]:
    """Reads to the end; returns the time of the first text and the usage."""
    first = 0.0
    usage: dict[str, int] = {}
    while size := int(await reader.readline(), 16):
        chunk = await reader.readexactly(size + 2)
        if not first and (b'"content":"' in chunk or b'"content": "' in chunk) and b'"content":""' not in chunk:
            first = time.perf_counter() - begin
        if b'"usage":{' in chunk or b'"usage": {' in chunk:
            for line in chunk.splitlines():
                if line.startswith(b"data: {") and (found := json.loads(line[6:]).get("usage")):
                    usage = found
    if not first or not usage:
        raise RuntimeError("the stream had no text or no usage")
    return first, usage


async def total(port: int, clients: int, *, rounds: int, tokens: int, start: int) -> Load:
    """Lets `clients` clients ask `rounds` questions each, one after the other; no question twice.

    Args:
        start: number of the first question, so that no run repeats another's.
    """

    async def client(number: int) -> int:
        done = 0
        for turn in range(rounds):
            question = start + turn * clients + number
            prompt = f"{TOPICS[question % len(TOPICS)]} ({question})"
            done += (await chat(port, prompt, tokens=tokens)).completion_tokens
        return done

    begin = time.perf_counter()
    done = await asyncio.gather(*(client(number) for number in range(clients)))
    return Load(clients, sum(done), time.perf_counter() - begin)


async def first_token(port: int, *, repeats: int) -> list[Answer]:
    """Asks for one token after a prompt of about 300, on an idle server; no prompt begins like another."""
    answers = []
    for repeat in range(repeats):
        notes = " ".join(
            f"On day {day + repeat} of the trip we met {name} near the old mill "
            "and walked along the river until the evening."
            for day, name in enumerate(
                ("Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Ida", "Jack", "Karl", "Lucy")
            )
        )
        answers.append(await chat(port, f"{repeat + 1}. Please summarise these notes. {notes}", tokens=8))
    return answers


def main() -> None:
    """The clients as a process of their own: python -m tests.bench.load PORT CLIENTS TOKENS ROUNDS."""
    port, clients, tokens, rounds = map(int, sys.argv[1:5])
    print(asyncio.run(total(port, clients, rounds=rounds, tokens=tokens, start=0)))


if __name__ == "__main__":
    main()
