"""Text to token ids and back, as the model file's `tokenizer.ggml.*` tables say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from appliance.gguf.metadata import Metadata


class Tokenizer:
    """Byte-level BPE. Immutable and safe to share between threads."""

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> Tokenizer:
        """Builds it from the file's tables.

        Raises:
            ModelFileError: a key is missing, the kind is not supported, or the tables contradict each other.
        """
        raise NotImplementedError

    @property
    def vocabulary(self) -> int:
        """Number of ids."""
        raise NotImplementedError

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids. special=True also turns the texts of control and user-defined tokens into their ids."""
        raise NotImplementedError

    def decode(self, ids: Iterable[int]) -> str:
        """Text of all ids, control tokens left out; bytes that are not UTF-8 become U+FFFD."""
        raise NotImplementedError

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one id stands for (for a control token the bytes of its name)."""
        raise NotImplementedError

    def is_control(self, token_id: int) -> bool:
        """True for control and unused tokens: never part of shown text."""
        raise NotImplementedError

    def special_id(self, text: str) -> int | None:
        """Id of the control or user-defined token with this text."""
        raise NotImplementedError
