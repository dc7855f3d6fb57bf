"""The `tokenizer.ggml.*` tables of a model file, checked against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from appliance.errors import ModelFileError
from appliance.text.pretokenizers import PreTokenizer, byte_alphabet, pre_tokenizer

if TYPE_CHECKING:
    from appliance.gguf.metadata import Metadata


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`, numbers as in the GGUF specification."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_ORDINARY = frozenset({TokenType.NORMAL, TokenType.BYTE})
_SPECIAL = frozenset({TokenType.CONTROL, TokenType.USER_DEFINED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Checked tables.

    Attributes:
        tokens: text by id; ordinary tokens in the byte alphabet.
        ordinary: id of each ordinary token, the only ones merging can give. Ordinary tokens spelled outside the byte
            alphabet are left out: no text can reach them.
        special_ids: id of each control and user-defined token by its text.
        hidden_ids: control, unknown and unused ids.
        merges: pairs in rank order; left, right and their join are all in `ordinary`.
    """

    tokens: tuple[str, ...]
    ordinary: Mapping[str, int]
    ordinary_ids: frozenset[int]
    special_ids: Mapping[str, int]
    hidden_ids: frozenset[int]
    merges: tuple[tuple[str, str], ...]
    pre: PreTokenizer


def read_vocabulary(metadata: Metadata) -> Vocabulary:
    """Reads and checks the tables.

    Raises:
        ModelFileError: a key is missing, the kind is not supported, or the tables contradict each other.
    """
    where = metadata.where
    model = metadata.str_("tokenizer.ggml.model")
    if model != "gpt2":
        raise ModelFileError(
            f'{where}: tokenizer.ggml.model is {model!r:.60}; only "gpt2" (byte-level BPE) is supported'
        )
    pre = pre_tokenizer(metadata.str_("tokenizer.ggml.pre"), where=where)
    tokens = metadata.strings("tokenizer.ggml.tokens")
    types = metadata.ints("tokenizer.ggml.token_type")
    if not tokens or len(types) != len(tokens):
        raise ModelFileError(
            f"{where}: tokenizer.ggml.token_type has {len(types)} entries and tokenizer.ggml.tokens {len(tokens)};"
            " both must have one per id"
        )
    ordinary, special = _sort_tokens(tokens, types, where=where)
    missing = [byte for byte, character in enumerate(byte_alphabet()) if character not in ordinary]
    if missing:
        raise ModelFileError(
            f"{where}: tokenizer.ggml.tokens has no token for {len(missing)} bytes, first 0x{missing[0]:02x}"
        )
    return Vocabulary(
        tokens=tokens,
        ordinary=ordinary,
        ordinary_ids=frozenset(ordinary.values()),
        special_ids=special,
        hidden_ids=frozenset(i for i, kind in enumerate(types) if kind in (2, 3, 5)),
        merges=_read_merges(metadata.strings("tokenizer.ggml.merges"), ordinary, where=where),
        pre=pre,
    )


def _sort_tokens(tokens: Sequence[str], types: Sequence[int], *, where: str) -> tuple[dict[str, int], dict[str, int]]:
    """Ordinary and special tokens by text. Equal texts matter within a table only; unused ids may repeat anything.

    A special token of one character is refused: guard.py could not break it up in client text.
    """
    alphabet = frozenset(byte_alphabet())
    ordinary: dict[str, int] = {}
    special: dict[str, int] = {}
    known = frozenset(map(int, TokenType))
    for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind not in known:
            raise ModelFileError(f"{where}: tokenizer.ggml.token_type[{token_id}] is {kind}; types are 1 to 6")
        if kind in _SPECIAL:
            table = special
        elif kind in _ORDINARY and token and alphabet.issuperset(token):
            table = ordinary
        else:
            continue
        single = kind in _SPECIAL and len(token) == 1
        if not token or single or table.setdefault(token, token_id) != token_id:
            found = "is a single character" if single else f"equals token {table[token]}" if token else "is empty"
            raise ModelFileError(
                f"{where}: tokenizer.ggml.tokens[{token_id}] {token!r:.40} {found}; every text must be its own"
            )
    return ordinary, special


def _read_merges(raw: Sequence[str], ordinary: Mapping[str, int], *, where: str) -> tuple[tuple[str, str], ...]:
    merges: list[tuple[str, str]] = []
    for rank, merge in enumerate(raw):
        left, space, right = merge.partition(" ")
        if not (left and space and right) or " " in right:
            raise ModelFileError(
                f"{where}: tokenizer.ggml.merges[{rank}] is {merge!r:.60}; it must be two tokens with one space between"
            )
        for token in (left, right, left + right):
            if token not in ordinary:
                raise ModelFileError(
                    f"{where}: tokenizer.ggml.merges[{rank}] {merge!r:.60} needs the token {token!r:.60},"
                    " which is not an ordinary token of tokenizer.ggml.tokens"
                )
        merges.append((left, right))
    return tuple(merges)
