"""How each known `tokenizer.ggml.pre` cuts text into words before merging, and the byte alphabet they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from appliance.errors import ModelFileError


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """pattern: words, as the `tokenizers` library's regex; nfc: whether text is composed (NFC) first."""

    pattern: str
    nfc: bool


# Pattern and normalisation of the model's own tokenizer. Combining marks join letters; digits stand alone.
PRE_TOKENIZERS: Final = {
    "qwen35": PreTokenizer(
        pattern=(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        nfc=True,
    ),
}


def pre_tokenizer(name: str, *, where: str) -> PreTokenizer:
    """The table's row.

    Raises:
        ModelFileError: the name is not in the table.
    """
    row = PRE_TOKENIZERS.get(name)
    if row is None:
        raise ModelFileError(
            f"{where}: tokenizer.ggml.pre is {name!r:.60}; this version can split text for {', '.join(PRE_TOKENIZERS)}"
        )
    return row


def byte_alphabet() -> tuple[str, ...]:
    """The printable character that stands for each byte 0..255 in a byte-level vocabulary (as in GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in set(printable))
    characters = {byte: chr(byte) for byte in printable}
    characters.update({byte: chr(256 + position) for position, byte in enumerate(others)})
    return tuple(characters[byte] for byte in range(256))
