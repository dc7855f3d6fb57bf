"""The header of one GGUF part: keys and tensor directory, every number checked before it is used."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from appliance.errors import ModelFileError
from appliance.gguf.disguise import not_a_gguf
from appliance.gguf.metadata import Metadata, Scalar, Value, ValueType

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MAX_ALIGNMENT: Final = 1 << 20
MAX_DIMENSIONS: Final = 4
MAX_NAME_BYTES: Final = 1024
# The largest vocabularies have 250 thousand entries; 4 million bounds time and memory of a hostile file.
MAX_ARRAY_ITEMS: Final = 1 << 22
MAX_KEYS: Final = 1 << 16
MAX_TENSORS: Final = 1 << 20

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_ENTRIES: Final = tuple(struct.Struct(f"<{rank}QIQ") for rank in range(MAX_DIMENSIONS + 1))
_MIN_KEY_BYTES: Final = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES: Final = 8 + 1 + 4 + 8 + 4 + 8

_FORMATS: Final = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "B",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
_ITEM_BYTES: Final = {kind: struct.calcsize("<" + code) for kind, code in _FORMATS.items()} | {ValueType.STRING: 8}


@dataclass(frozen=True)
class Entry:
    """One line of the tensor directory, dimensions innermost first, offset from the start of the data."""

    name: str
    dims: tuple[int, ...]
    type_number: int
    offset: int


@dataclass(frozen=True)
class Header:
    """What stands before the data of one part.

    Attributes:
        version: of the format, 2 or 3.
        metadata: the keys of this part.
        entries: the tensor directory, in file order.
        alignment: bytes; every entry's offset is a multiple of it.
        data_start: offset of the first data byte in the part.
    """

    version: int
    metadata: Metadata
    entries: tuple[Entry, ...]
    alignment: int
    data_start: int


def parse_header(data: memoryview, *, where: str) -> Header:
    """Reads the header that the bytes start with.

    Args:
        data: the part from its first byte, uint8. Only the header's bytes are read.
        where: what to call the part in messages.

    Raises:
        ModelFileError: not a GGUF of version 2 or 3, or a number that the bytes cannot hold; with byte offset.
    """
    problem = not_a_gguf(bytes(data[:512]), size_bytes=len(data))
    if problem is not None:
        raise ModelFileError(f"{where}: {problem}")
    cursor = _Cursor(data, where=where)
    cursor.position = 4
    version = cursor.u32("version")
    tensor_count = cursor.u64("tensor count")
    key_count = cursor.u64("key count")
    cursor.need_items(tensor_count, _MIN_TENSOR_BYTES, MAX_TENSORS, "tensors")
    cursor.need_items(key_count, _MIN_KEY_BYTES, MAX_KEYS, "metadata keys")
    metadata = _read_keys(cursor, key_count)
    alignment = _alignment(metadata)
    entries = _read_directory(cursor, tensor_count)
    data_start = -(-cursor.position // alignment) * alignment
    return Header(version, metadata, entries, alignment, data_start)


class _Cursor:
    """A position in the bytes that never moves past their end nor backwards."""

    def __init__(self, data: memoryview, *, where: str) -> None:
        self.data = data
        self.where = where
        self.position = 0

    def fail(self, sentence: str, *, at: int | None = None) -> ModelFileError:
        offset = self.position if at is None else at
        hint = "the file is damaged or cut short; download it again"
        return ModelFileError(f"{self.where}: {sentence}, at byte {offset} of {len(self.data)}", hint=hint)

    def need(self, size_bytes: int, what: str) -> None:
        left = len(self.data) - self.position
        if size_bytes > left:
            raise self.fail(f"the {what} needs {size_bytes} bytes and {left} are left")

    def need_items(self, count: int, least_bytes: int, most: int, what: str) -> None:
        if count > most:
            raise self.fail(f"the header announces {count} {what}; at most {most} are possible")
        left = len(self.data) - self.position
        if count * least_bytes > left:
            raise self.fail(f"{count} {what} need at least {count * least_bytes} bytes and {left} are left")

    def u32(self, what: str) -> int:
        self.need(4, what)
        value: int = _U32.unpack_from(self.data, self.position)[0]
        self.position += 4
        return value

    def u64(self, what: str) -> int:
        self.need(8, what)
        value: int = _U64.unpack_from(self.data, self.position)[0]
        self.position += 8
        return value

    def text(self, what: str, *, most_bytes: int | None = None) -> str:
        """A string; with a limit it is a name, which messages repeat and which must be fit to be printed."""
        start = self.position
        if start + 8 > len(self.data):
            self.need(8, f"length of the {what}")
        size = self.u64("length of a string")
        left = len(self.data) - self.position
        if size > left:
            raise self.fail(f"the {what} is {size} bytes long and {left} are left", at=start)
        if most_bytes is not None and not 1 <= size <= most_bytes:
            raise self.fail(f"the {what} is {size} bytes long; 1 to {most_bytes} are allowed", at=start)
        end = self.position + size
        try:
            value = str(self.data[self.position : end], "utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"the {what} is not valid UTF-8", at=self.position + error.start) from error
        if most_bytes is not None and not value.isprintable():
            raise self.fail(f"the {what} is {value!r:.80}; only printable characters are allowed", at=start)
        self.position = end
        return value

    def texts(self, count: int, what: str) -> tuple[str, ...]:
        """Many strings: the checks of `text` in one loop, because a vocabulary has 250 thousand of them."""
        data, position, size = self.data, self.position, len(self.data)
        unpack = _U64.unpack_from
        found: list[str] = []
        append = found.append
        try:
            for _ in range(count):
                start = position + 8
                end = start + unpack(data, position)[0]
                if end > size:
                    break
                append(str(data[start:end], "utf-8"))
                position = end
        except (struct.error, UnicodeDecodeError):
            pass  # the same string is read again below, where the fault gets its sentence
        self.position = position
        if len(found) < count:
            self.text(f"string {len(found)} of {what}")
        return tuple(found)


def _read_keys(cursor: _Cursor, count: int) -> Metadata:
    values: dict[str, Value] = {}
    for _ in range(count):
        start = cursor.position
        key = cursor.text("key", most_bytes=MAX_NAME_BYTES)
        if key in values:
            raise cursor.fail(f"the metadata key {key:.80} appears twice", at=start)
        values[key] = _read_value(cursor, key)
    return Metadata(values, where=cursor.where)


def _read_value(cursor: _Cursor, key: str) -> Value:
    kind = _value_type(cursor, "value", key)
    if kind is not ValueType.ARRAY:
        return Value(kind, is_array=False, items=_read_items(cursor, kind, 1, key))
    kind = _value_type(cursor, "elements", key)
    if kind is ValueType.ARRAY:
        raise cursor.fail(f"the metadata key {key:.80} is an array of arrays, which is not allowed")
    count = cursor.u64(f"length of the array {key:.80}")
    cursor.need_items(count, _ITEM_BYTES[kind], MAX_ARRAY_ITEMS, f"elements of {key:.80}")
    return Value(kind, is_array=True, items=_read_items(cursor, kind, count, key))


def _value_type(cursor: _Cursor, what: str, key: str) -> ValueType:
    number = cursor.u32("type of a value")
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.fail(f"the {what} of {key:.80} has type {number}; 0 to 12 exist", at=cursor.position - 4) from None


def _read_items(cursor: _Cursor, kind: ValueType, count: int, key: str) -> tuple[Scalar, ...]:
    if kind is ValueType.STRING:
        return cursor.texts(count, f"{key:.80}")
    size = count * _ITEM_BYTES[kind]
    cursor.need(size, f"value of {key:.80}")
    items = struct.unpack_from(f"<{count}{_FORMATS[kind]}", cursor.data, cursor.position)
    if kind is ValueType.BOOL:
        if not set(items) <= {0, 1}:
            raise cursor.fail(f"the metadata key {key:.80} has a boolean of {max(items)}; 0 and 1 are allowed")
        items = tuple(map(bool, items))
    cursor.position += size
    return items


def _alignment(metadata: Metadata) -> int:
    value = metadata.int_("general.alignment", DEFAULT_ALIGNMENT)
    if not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
        rule = f"it must be a power of two up to {MAX_ALIGNMENT}"
        raise ModelFileError(f"{metadata.where}: metadata key general.alignment is {value}; {rule}")
    return value


def _read_directory(cursor: _Cursor, count: int) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    for _ in range(count):
        name = cursor.text("tensor name", most_bytes=MAX_NAME_BYTES)
        rank = cursor.u32("number of dimensions")
        if not 1 <= rank <= MAX_DIMENSIONS:
            raise cursor.fail(
                f"the tensor {name:.80} has {rank} dimensions; 1 to {MAX_DIMENSIONS} are allowed",
                at=cursor.position - 4,
            )
        line = _ENTRIES[rank]
        cursor.need(line.size, "directory entry")
        *dims, number, offset = line.unpack_from(cursor.data, cursor.position)
        cursor.position += line.size
        entries.append(Entry(name, tuple(dims), number, offset))
    return tuple(entries)
