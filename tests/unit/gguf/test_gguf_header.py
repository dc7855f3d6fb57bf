"""The header parser against hostile numbers: GGUF-01 to GGUF-06 and GGUF-18, all refused by arithmetic."""

from __future__ import annotations

import resource
import struct
import time
from collections.abc import Callable

import pytest

from appliance.errors import ExitCode, ModelFileError
from appliance.gguf.metadata import ValueType
from appliance.gguf.reader import open_bytes
from tests.builders.gguf import Key, TensorSpec, Typed, gguf_bytes, text

HUGE = 1 << 63


def refusal(data: bytes) -> str:
    """The message of a file that must be refused at once and without memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    with pytest.raises(ModelFileError) as caught:
        open_bytes(data, name="bad.gguf")
    assert time.process_time() - started < 0.5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # KiB
    assert caught.value.exit_code is ExitCode.MODEL_FILE
    message = str(caught.value)
    assert message.startswith("bad.gguf: ")
    assert "\n" not in message
    return message


def kv(key: bytes, value: bytes) -> bytes:
    """A file with one key, its value given as raw bytes."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(key) + value


@pytest.mark.parametrize(
    "dims",
    [(0xFFFFFFFFFFFFFFFF, 2), ((1 << 32), (1 << 32)), (32, (1 << 42) + 1), (1 << 62, 2, 2, 1)],
    ids=["GGUF-01-all-ones", "GGUF-01-wraps-to-zero", "GGUF-01-terabytes", "GGUF-01-three-factors"],
)
def test_element_counts_do_not_wrap(dims: tuple[int, ...]) -> None:
    message = refusal(gguf_bytes({}, [TensorSpec("big.weight", (), data=bytes(64), dims=dims)]))
    assert "big.weight" in message
    assert str(list(dims)) in message or "ends at byte" in message


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (gguf_bytes({}, tensor_count=HUGE), "announces 9223372036854775808 tensors"),
        (gguf_bytes({}, tensor_count=1000), "1000 tensors need at least"),
        (gguf_bytes({}, key_count=1 << 32), "announces 4294967296 metadata keys"),
        (gguf_bytes({}, key_count=60000), "60000 metadata keys need at least"),
        (kv(b"k", struct.pack("<IIQ", 9, 8, 1 << 40)), "announces 1099511627776 elements of k"),
        (kv(b"k", struct.pack("<IIQ", 9, 8, 1 << 20)), "1048576 elements of k need at least 8388608 bytes"),
        (kv(b"k", struct.pack("<IIQ", 9, 12, HUGE)), "elements of k"),
    ],
    ids=[
        "GGUF-02-tensors-2e63",
        "GGUF-02-tensors",
        "GGUF-02-keys-2e32",
        "GGUF-02-keys",
        "GGUF-02-strings-2e40",
        "GGUF-02-strings",
        "GGUF-02-doubles",
    ],
)
def test_counts_are_compared_with_the_bytes_left(data: bytes, says: str) -> None:
    assert says in refusal(data)


def one_key_file(length: int, body: bytes = b"abc") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", length) + body + bytes(32)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (one_key_file(1 << 30), "1073741824 bytes long and 35 are left, at byte 24"),
        (one_key_file(HUGE), "9223372036854775808 bytes long"),
        (one_key_file((1 << 64) - 8), "bytes long and 35 are left"),
        (one_key_file(0), "the key is 0 bytes long"),
        (kv(b"k\n[fake log line]", struct.pack("<IQ", 4, 1)), "only printable characters"),
        (one_key_file(36), "36 bytes long and 35 are left"),
        (kv(b"k", struct.pack("<IQ", 8, 5) + b"four"), "5 bytes long and 4 are left"),
        (kv(b"k\xff\xfe", struct.pack("<IQ", 4, 1)), "not valid UTF-8, at byte 33"),
        (kv(b"k", struct.pack("<IQ", 8, 4) + b"ab\xc3("), "not valid UTF-8"),
        (kv(b"k", struct.pack("<IIQQ", 9, 8, 2, 1) + b"a" + struct.pack("<Q", 99) + bytes(20)), "string 1 of k"),
        (kv(b"k", struct.pack("<IIQQ", 9, 8, 2, 1) + b"a" + struct.pack("<Q", 2) + b"\xff\xff"), "string 1 of k"),
        (kv(b"k", struct.pack("<IIQQ", 9, 8, 2, 8) + b"12345678" + b"123"), "string 1 of k"),
    ],
    ids=[
        "GGUF-03-key-2e30",
        "GGUF-03-key-2e63",
        "GGUF-03-key-negative",
        "GGUF-03-key-empty",
        "GGUF-03-key-with-newline",
        "GGUF-03-key-one-too-long",
        "GGUF-03-value-one-too-long",
        "GGUF-03-key-utf8",
        "GGUF-03-value-utf8",
        "GGUF-03-array-string",
        "GGUF-03-array-utf8",
        "GGUF-03-array-cut",
    ],
)
def test_strings_end_within_the_file(data: bytes, says: str) -> None:
    message = refusal(data)
    assert says in message
    assert "at byte" in message


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (kv(b"k", struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50_000), "array of arrays"),
        (kv(b"k", struct.pack("<IIQ", 9, 13, 1) + bytes(64)), "elements of k has type 13; 0 to 12 exist"),
        (kv(b"k", struct.pack("<I", 13) + bytes(64)), "value of k has type 13"),
        (kv(b"k", struct.pack("<IB", 7, 7) + bytes(64)), "boolean of 7"),
        (kv(b"k", struct.pack("<IIQ", 9, 7, 3) + b"\x00\x01\x02"), "boolean of 2"),
        (kv(b"k", struct.pack("<IB", 4, 7)), "value of k needs 4 bytes and 1 are left"),
    ],
    ids=[
        "GGUF-04-50000-deep",
        "GGUF-04-element-type",
        "GGUF-04-value-type",
        "GGUF-04-bool",
        "GGUF-04-bools",
        "GGUF-04-cut",
    ],
)
def test_values_have_known_types(data: bytes, says: str) -> None:
    assert says in refusal(data)


@pytest.mark.parametrize("rank", [0, 5, 9, 0xFFFFFFFF], ids=lambda r: f"GGUF-06-rank-{r}")
def test_ranks_are_one_to_four(rank: int) -> None:
    entry = text("odd.weight") + struct.pack("<I", rank) + bytes(120)
    message = refusal(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + entry)
    assert f"odd.weight has {rank} dimensions; 1 to 4" in message


@pytest.mark.parametrize("dims", [(0,), (4, 0), (1, 1, 1, 0)], ids=lambda d: f"GGUF-06-zero-in-{len(d)}")
def test_no_dimension_is_zero(dims: tuple[int, ...]) -> None:
    message = refusal(gguf_bytes({}, [TensorSpec("odd.weight", (1,), dims=dims)]))
    assert f"odd.weight has dimensions {list(dims)}" in message


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
        (b"\n  <html>", "web page"),
        (b'{"error": "not found"}', "JSON"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 99, 0, 0), "version 99"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"FUGG" + bytes(40), "bytes swapped"),
        (bytes(4096), "zeros"),
        (b"PK\x03\x04" + bytes(60), "zip"),
        (struct.pack("<Q", 60) + b'{"a":1}', "safetensors"),
        (b"GG", "cut short"),
        (b"GGUF\x03\x00", "cut short"),
        (b"hello, this is a text", "starts with b'hell'"),
    ],
    ids=lambda v: f"GGUF-18-{v[:12].replace(' ', '-')}" if isinstance(v, str) else "",
)
def test_other_files_are_called_by_name(data: bytes, says: str) -> None:
    assert says in refusal(data)


def test_duplicate_keys_and_bad_alignments_are_refused() -> None:
    twice = text("k") + struct.pack("<II", 4, 1)
    assert "k appears twice" in refusal(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + twice * 2)
    for wrong in (0, 3, 48, 1 << 30):
        assert f"general.alignment is {wrong}" in refusal(gguf_bytes({"general.alignment": wrong}))
    assert "general.alignment" in refusal(gguf_bytes({"general.alignment": "32"}))


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [1, 32, 64, 4096])
def test_valid_files_open(version: int, alignment: int) -> None:
    tensors = [TensorSpec("a", (3, 5)), TensorSpec("b", (2, 64), "Q8_0"), TensorSpec("c", (1,))]
    found = open_bytes(gguf_bytes({}, tensors, version=version, alignment=alignment), name="ok.gguf")
    assert [(t.name, t.shape, t.type.name, t.byte_count) for t in found.tensors.values()] == [
        ("a", (3, 5), "F32", 60),
        ("b", (2, 64), "Q8_0", 136),
        ("c", (1,), "F32", 4),
    ]
    assert all(t.offset % alignment == 0 for t in found.tensors.values())


def test_getters_accept_any_integer_and_name_what_is_wrong() -> None:
    integers = [t for t in ValueType if t.name.startswith(("INT", "UINT"))]
    keys: dict[str, Key] = {t.name: Typed(t, 7) for t in integers}
    keys |= {f"{t.name}s": Typed(t, (1, 2)) for t in integers}
    odd: dict[str, Key] = {
        "text": "x",
        "yes": True,
        "nan": Typed(ValueType.FLOAT32, float("nan")),
        "half": 0.5,
        "flags": (1, 0),
        "none": Typed(ValueType.STRING, ()),
    }
    found = open_bytes(gguf_bytes(keys | odd), name="k.gguf").metadata
    assert all(found.int_(t.name) == 7 and found.ints(f"{t.name}s") == (1, 2) for t in integers)
    assert found.float_("half") == 0.5
    assert found.float_("UINT8") == 7.0
    assert found.bools("flags") == (True, False)
    assert found.ints("none") == ()
    assert found.int_("absent", None) is None
    assert found.strings("absent", default=("a",)) == ("a",)
    wrong: list[tuple[Callable[[str], object], str, str]] = [
        (found.int_, "text", "STRING 'x'"),
        (found.int_, "yes", "BOOL"),
        (found.int_, "INT8s", "an array of 2 INT8"),
        (found.ints, "INT8", "an array of integers"),
        (found.float_, "nan", "finite"),
        (found.str_, "INT8", "one string"),
        (found.bools, "INT8s", "0 or 1"),
        (found.bool_, "absent", "absent"),
    ]
    for getter, key, says in wrong:
        with pytest.raises(ModelFileError, match=f"k.gguf: metadata key {key} is .*") as caught:
            getter(key)
        assert says in str(caught.value)


def test_a_vocabulary_of_250_thousand_opens_in_a_second() -> None:
    words = tuple(f"token{n}" for n in range(250_000))
    data = gguf_bytes({"tokens": words, "merges": tuple(f"a{n} b" for n in range(250_000)), "kinds": (1,) * 250_000})
    started = time.process_time()
    found = open_bytes(data, name="big.gguf")
    assert time.process_time() - started < 1.0
    assert found.metadata.strings("tokens")[-1] == "token249999"
