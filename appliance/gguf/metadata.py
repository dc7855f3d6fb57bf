"""Typed access to the metadata keys of one GGUF header."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, Literal, TypeVar, overload

from appliance.errors import ModelFileError

T = TypeVar("T")
Scalar = int | float | bool | str


class ValueType(IntEnum):
    """What a metadata value is stored as; numbers as in the GGUF specification."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


INTEGER_TYPES: Final = frozenset(
    {
        ValueType.UINT8,
        ValueType.INT8,
        ValueType.UINT16,
        ValueType.INT16,
        ValueType.UINT32,
        ValueType.INT32,
        ValueType.UINT64,
        ValueType.INT64,
    }
)
FLOAT_TYPES: Final = frozenset({ValueType.FLOAT32, ValueType.FLOAT64})


@dataclass(frozen=True)
class Value:
    """One metadata value as stored: the type of the scalar or of each element, and the value itself."""

    type: ValueType
    is_array: bool
    items: tuple[Scalar, ...]

    def describe(self) -> str:
        """What was found, short enough for a message."""
        if self.is_array:
            return f"an array of {len(self.items)} {self.type.name}"
        return f"{self.type.name} {self.items[0]!r:.60}"


class _Required(Enum):
    TOKEN = 0


_REQUIRED: Final = _Required.TOKEN
_Absent = Literal[_Required.TOKEN]


class Metadata:
    """The keys of one GGUF part.

    Every getter takes the key and optionally a default. Without a default an absent key is an error; a key that
    is present with another type is always one. Integers of any width are accepted where an integer is wanted.

    Raises (every getter):
        ModelFileError: names the file, the key, what was found and what is allowed.
    """

    def __init__(self, values: Mapping[str, Value], *, where: str) -> None:
        self._values = values
        self._where = where

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def where(self) -> str:
        """File name for messages."""
        return self._where

    def is_array(self, key: str) -> bool:
        """Whether the key is present and holds an array."""
        value = self._values.get(key)
        return value is not None and value.is_array

    def describe(self, key: str) -> str:
        """Type and value as found, for messages; "absent" when the key is not there."""
        value = self._values.get(key)
        return "absent" if value is None else value.describe()

    @overload
    def int_(self, key: str) -> int: ...
    @overload
    def int_(self, key: str, default: T) -> int | T: ...
    def int_(self, key: str, default: T | _Absent = _REQUIRED) -> int | T:
        """A scalar of any integer type; bool is not one."""
        value = self._scalar(key, INTEGER_TYPES, "one integer", default)
        return value if not isinstance(value, Value) else int(value.items[0])

    @overload
    def float_(self, key: str) -> float: ...
    @overload
    def float_(self, key: str, default: T) -> float | T: ...
    def float_(self, key: str, default: T | _Absent = _REQUIRED) -> float | T:
        """A finite scalar of any float or integer type."""
        value = self._scalar(key, FLOAT_TYPES | INTEGER_TYPES, "one number", default)
        if not isinstance(value, Value):
            return value
        return self._finite(key, value)[0]

    @overload
    def str_(self, key: str) -> str: ...
    @overload
    def str_(self, key: str, default: T) -> str | T: ...
    def str_(self, key: str, default: T | _Absent = _REQUIRED) -> str | T:
        """A string."""
        value = self._scalar(key, frozenset({ValueType.STRING}), "one string", default)
        return value if not isinstance(value, Value) else str(value.items[0])

    @overload
    def bool_(self, key: str) -> bool: ...
    @overload
    def bool_(self, key: str, default: T) -> bool | T: ...
    def bool_(self, key: str, default: T | _Absent = _REQUIRED) -> bool | T:
        """A boolean."""
        value = self._scalar(key, frozenset({ValueType.BOOL}), "one boolean", default)
        return value if not isinstance(value, Value) else bool(value.items[0])

    @overload
    def ints(self, key: str) -> tuple[int, ...]: ...
    @overload
    def ints(self, key: str, default: T) -> tuple[int, ...] | T: ...
    def ints(self, key: str, default: T | _Absent = _REQUIRED) -> tuple[int, ...] | T:
        """An array of any integer type."""
        value = self._array(key, INTEGER_TYPES, "an array of integers", default)
        return value if not isinstance(value, Value) else tuple(map(int, value.items))

    @overload
    def bools(self, key: str) -> tuple[bool, ...]: ...
    @overload
    def bools(self, key: str, default: T) -> tuple[bool, ...] | T: ...
    def bools(self, key: str, default: T | _Absent = _REQUIRED) -> tuple[bool, ...] | T:
        """An array of booleans, or of integers that are 0 or 1."""
        value = self._array(key, INTEGER_TYPES | {ValueType.BOOL}, "an array of booleans", default)
        if not isinstance(value, Value):
            return value
        if not set(value.items) <= {0, 1}:
            raise self._wrong(key, value, "an array of booleans (0 or 1)")
        return tuple(map(bool, value.items))

    @overload
    def floats(self, key: str) -> tuple[float, ...]: ...
    @overload
    def floats(self, key: str, default: T) -> tuple[float, ...] | T: ...
    def floats(self, key: str, default: T | _Absent = _REQUIRED) -> tuple[float, ...] | T:
        """An array of finite numbers."""
        value = self._array(key, FLOAT_TYPES | INTEGER_TYPES, "an array of numbers", default)
        return value if not isinstance(value, Value) else self._finite(key, value)

    @overload
    def strings(self, key: str) -> tuple[str, ...]: ...
    @overload
    def strings(self, key: str, default: T) -> tuple[str, ...] | T: ...
    def strings(self, key: str, default: T | _Absent = _REQUIRED) -> tuple[str, ...] | T:
        """An array of strings."""
        value = self._array(key, frozenset({ValueType.STRING}), "an array of strings", default)
        return value if not isinstance(value, Value) else value.items  # type: ignore[return-value]

    def _scalar(self, key: str, types: frozenset[ValueType], allowed: str, default: T | _Absent) -> Value | T:
        return self._get(key, types, allowed, default, is_array=False)

    def _array(self, key: str, types: frozenset[ValueType], allowed: str, default: T | _Absent) -> Value | T:
        return self._get(key, types, allowed, default, is_array=True)

    def _get(
        self, key: str, types: frozenset[ValueType], allowed: str, default: T | _Absent, *, is_array: bool
    ) -> Value | T:
        value = self._values.get(key)
        if value is None:
            if isinstance(default, _Required):
                raise ModelFileError(f"{self._where}: metadata key {key} is absent; it must be {allowed}")
            return default
        if value.is_array != is_array or (value.type not in types and not (is_array and not value.items)):
            raise self._wrong(key, value, allowed)
        return value

    def _finite(self, key: str, value: Value) -> tuple[float, ...]:
        numbers = tuple(map(float, value.items))
        if not all(map(math.isfinite, numbers)):
            raise self._wrong(key, value, "finite numbers only")
        return numbers

    def _wrong(self, key: str, value: Value, allowed: str) -> ModelFileError:
        return ModelFileError(f"{self._where}: metadata key {key} is {value.describe()}; it must be {allowed}")
