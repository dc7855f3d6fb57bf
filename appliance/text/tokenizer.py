"""Text to token ids and back, as the model file's `tokenizer.ggml.*` tables say."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tokenizers import Regex
from tokenizers import Tokenizer as Pipeline
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from appliance.text.pretokenizers import PreTokenizer, byte_alphabet
from appliance.text.vocabulary import Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from appliance.gguf.metadata import Metadata


class Tokenizer:
    """Byte-level BPE. Immutable and safe to share between threads.

    The merging part knows ordinary tokens only: without special=True no text whatever can become the id of a control
    or user-defined token. No BOS is ever added.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._pre: PreTokenizer = vocabulary.pre
        self._bytes_of = {character: byte for byte, character in enumerate(byte_alphabet())}
        self._pipeline = _pipeline(vocabulary)
        self._special_ids = vocabulary.special_ids
        self._special_set = frozenset(self._special_ids.values())
        texts = sorted(self._special_ids, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, texts))) if texts else None

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> Tokenizer:
        """Builds it from the file's tables.

        Raises:
            ModelFileError: a key is missing, the kind is not supported, or the tables contradict each other.
        """
        return cls(read_vocabulary(metadata))

    @property
    def vocabulary(self) -> int:
        """Number of ids."""
        return len(self._vocabulary.tokens)

    @property
    def special_texts(self) -> tuple[str, ...]:
        """Texts of all control and user-defined tokens, longest first."""
        return tuple(sorted(self._special_ids, key=len, reverse=True))

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids. special=True also turns the texts of control and user-defined tokens into their ids."""
        if not special or self._special is None:
            return self._encode_plain(text)
        ids: list[int] = []
        start = 0
        for match in self._special.finditer(text):
            ids += self._encode_plain(text[start : match.start()])
            ids.append(self._special_ids[match.group()])
            start = match.end()
        return ids + self._encode_plain(text[start:])

    def split_special(self, text: str) -> list[tuple[str, int | None]]:
        """Cuts text at special tokens: (piece, None) between them, (token text, its id) for each. No piece is empty."""
        pieces: list[tuple[str, int | None]] = []
        start = 0
        for match in self._special.finditer(text) if self._special else ():
            if match.start() > start:
                pieces.append((text[start : match.start()], None))
            pieces.append((match.group(), self._special_ids[match.group()]))
            start = match.end()
        return [*pieces, (text[start:], None)] if start < len(text) else pieces

    def decode(self, ids: Iterable[int]) -> str:
        """Text of all ids, control tokens left out; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes(i) for i in ids if not self.is_control(i)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one id stands for (for a control token the bytes of its name).

        Raises:
            ValueError: the id is outside the vocabulary.
        """
        if not 0 <= token_id < len(self._vocabulary.tokens):
            raise ValueError(f"token id {token_id} is outside the vocabulary of {len(self._vocabulary.tokens)}")
        token = self._vocabulary.tokens[token_id]
        if token_id in self._vocabulary.ordinary_ids:
            return bytes(self._bytes_of[character] for character in token)
        return token.encode("utf-8", "replace")

    def is_control(self, token_id: int) -> bool:
        """True for control, unknown and unused tokens: never part of shown text."""
        return token_id in self._vocabulary.hidden_ids

    def is_special(self, token_id: int) -> bool:
        """True for control and user-defined tokens."""
        return token_id in self._special_set

    def special_id(self, text: str) -> int | None:
        """Id of the control or user-defined token with this text."""
        return self._special_ids.get(text)

    def _encode_plain(self, text: str) -> list[int]:
        if not text:
            return []
        text = without_lone_surrogates(text)
        if self._pre.nfc:
            text = unicodedata.normalize("NFC", text)
        ids: list[int] = self._pipeline.encode(text, add_special_tokens=False).ids
        return ids


def without_lone_surrogates(text: str) -> str:
    """JSON can spell half a character (\\ud83d); UTF-8 cannot hold it, so it becomes U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _pipeline(vocabulary: Vocabulary) -> Pipeline:
    pipeline = Pipeline(BPE(vocab=dict(vocabulary.ordinary), merges=list(vocabulary.merges)))
    pipeline.pre_tokenizer = Sequence(
        [
            Split(Regex(vocabulary.pre.pattern), "isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return pipeline
