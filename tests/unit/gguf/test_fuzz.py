"""Ten thousand damaged headers: each opens or is refused in one line, within bounded time and memory."""

from __future__ import annotations

import random
import resource
import struct
import time
from collections import Counter
from collections.abc import Callable

from appliance.errors import ModelFileError
from appliance.gguf.reader import GgufSet, open_bytes
from appliance.model.qwen4exp.spec import read_spec
from tests.builders.gguf import TinyModel, tiny_model

CASES = 10_000
SECONDS = 40.0
GROWTH_KIB = 200 * 1024
COUNTS = (0, 1, 2, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)

Mutation = Callable[[bytearray, random.Random, "tuple[int, ...]"], bytearray]


def small_model() -> TinyModel:
    """The miniature with its matrices at 4 bits: only the header matters here, and every case copies the rest."""
    model = tiny_model(plain_tokens=("a", "b", "c"))
    for name, tensor in model.tensors.items():
        if tensor.shape[-1] % 32 == 0:
            model = model.shape(name, *tensor.shape, kind="Q4_0")
    return model


def header_size(whole: GgufSet) -> int:
    return min(t.offset for t in whole.tensors.values())


def number_places(header: bytes, whole: GgufSet) -> tuple[int, ...]:
    """Where the numbers that steer the parser stand: the counts, and before and after every name."""
    places = [4, 8, 16]
    for name in (*whole.metadata, *whole.tensors):
        at = header.index(struct.pack("<Q", len(name)) + name.encode())
        after = at + 8 + len(name)
        places += [at, after, after + 4, after + 8, after + 12, after + 20]
    return tuple(p for p in places if p + 8 <= len(header))


def truncate(header: bytearray, rng: random.Random, _: tuple[int, ...]) -> bytearray:
    return header[: rng.randrange(len(header))]


def flip(header: bytearray, rng: random.Random, _: tuple[int, ...]) -> bytearray:
    for _bit in range(rng.randint(1, 8)):
        header[rng.randrange(len(header))] = rng.randrange(256)
    return header


def flip_one_bit(header: bytearray, rng: random.Random, _: tuple[int, ...]) -> bytearray:
    header[rng.randrange(len(header))] ^= 1 << rng.randrange(8)
    return header


def huge_count(header: bytearray, rng: random.Random, places: tuple[int, ...]) -> bytearray:
    for _field in range(rng.randint(1, 2)):
        struct.pack_into("<Q", header, rng.choice(places), rng.choice(COUNTS))
    return header


def odd_number(header: bytearray, rng: random.Random, places: tuple[int, ...]) -> bytearray:
    struct.pack_into("<I", header, rng.choice(places), rng.choice((0, 1, 2, 5, 8, 9, 12, 13, 255, 1 << 31, 0xFFFFFFFF)))
    return header


def cut_out(header: bytearray, rng: random.Random, _: tuple[int, ...]) -> bytearray:
    start = rng.randrange(len(header))
    del header[start : start + rng.randint(1, 64)]
    return header


def repeat(header: bytearray, rng: random.Random, _: tuple[int, ...]) -> bytearray:
    start, size = rng.randrange(len(header)), rng.randint(1, 256)
    return header[: start + size] + header[start:]


def swap(header: bytearray, rng: random.Random, _: tuple[int, ...]) -> bytearray:
    a, b = sorted(rng.sample(range(len(header) - 32), 2))
    header[a : a + 16], header[b : b + 16] = header[b : b + 16], header[a : a + 16]
    return header


MUTATIONS: tuple[Mutation, ...] = (truncate, flip, flip_one_bit, huge_count, odd_number, cut_out, repeat, swap)


def outcome(data: bytes) -> str:
    """Opened, judged or refused; any other exception is a failure of the test."""
    try:
        model = open_bytes(data, name="fuzz.gguf")
    except ModelFileError as error:
        check_message(error)
        return "refused by the reader"
    try:
        read_spec(model)
    except ModelFileError as error:
        check_message(error)
        return "refused by the spec"
    finally:
        model.close()
    return "opened"


def check_message(error: ModelFileError) -> None:
    message = str(error)
    assert message.startswith("fuzz.gguf: ")
    assert message.isprintable()
    assert 20 < len(message) < 20_000


def test_ten_thousand_damaged_headers() -> None:
    data = small_model().to_bytes()
    whole = open_bytes(data, name="whole.gguf")
    size = header_size(whole)
    header, body = data[:size], data[size:]
    places = number_places(header, whole)
    rng = random.Random(20260101)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    seen: Counter[str] = Counter()
    slowest = 0.0
    for case in range(CASES):
        mutated = MUTATIONS[case % len(MUTATIONS)](bytearray(header), rng, places)
        damaged = bytes(mutated) if case % len(MUTATIONS) == 0 else bytes(mutated) + body
        began = time.process_time()
        seen[outcome(damaged)] += 1
        slowest = max(slowest, time.process_time() - began)
    assert time.process_time() - started < SECONDS
    assert slowest < 2.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB
    assert seen.total() == CASES
    assert min(seen.values()) > 100, seen  # every stage is reached
    assert len(seen) == 3
