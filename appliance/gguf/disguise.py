"""What a file that is no GGUF of ours looks like, and what to do about it."""

from __future__ import annotations

from typing import Final

_MAGIC: Final = b"GGUF"
_DOWNLOAD: Final = "download the model file itself"

# First bytes, what they are, what to try. In order; the first match wins.
_LOOKS: Final = (
    (b"version https://git-lfs", "a Git LFS pointer, not the model", "run `git lfs pull`, or " + _DOWNLOAD),
    (b"# xet", "a Xet pointer, not the model", _DOWNLOAD),
    (b"FUGG", "a GGUF with its bytes swapped (big endian)", "use the little-endian file"),
    (b"ggml", "a GGML file, older than GGUF", "use a GGUF of version 3"),
    (b"lmgg", "a GGML file, older than GGUF", "use a GGUF of version 3"),
    (b"tjgg", "a GGJT file, older than GGUF", "use a GGUF of version 3"),
    (b"PK\x03\x04", "a zip archive or a PyTorch checkpoint", "use the model's GGUF"),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", "unpack it first"),
    (b"\xfd7zXZ", "an xz archive", "unpack it first"),
    (b"%PDF", "a PDF", "use the model's GGUF"),
)


def not_a_gguf(start: bytes, *, size_bytes: int) -> str | None:
    """Judges the first bytes of a file.

    Args:
        start: up to 512 bytes.
        size_bytes: of the whole file.

    Returns:
        A sentence about what it looks like and what to do, or None for a little-endian GGUF of version 2 or 3.
    """
    if size_bytes == 0:
        return f"the file is empty; {_DOWNLOAD}"
    if start[:4] == _MAGIC:
        return _version_problem(start)
    for prefix, what, hint in _LOOKS:
        if start.startswith(prefix):
            return f"this is {what}; {hint}"
    if not any(start):
        return "the file starts with zeros: a download that was reserved and never filled; download it again"
    if start[8:9] == b"{" and not any(start[5:8]):
        return "this is a safetensors file; use the model's GGUF"
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] == b"<":
        return f"this is a web page (HTML or XML), probably an error or login page saved as the model; {_DOWNLOAD}"
    if text[:1] in (b"{", b"["):
        return f"this is JSON text, not a model; {_DOWNLOAD}"
    if _MAGIC.startswith(start):
        return "the file is cut short within its first 4 bytes; download it again"
    return f"not a GGUF: it starts with {start[:4]!r} and must start with {_MAGIC!r}; use the model's GGUF"


def _version_problem(start: bytes) -> str | None:
    if len(start) < 24:
        return "the file is cut short within its first 24 bytes; download it again"
    version = int.from_bytes(start[4:8], "little")
    if version in (2, 3):
        return None
    if int.from_bytes(start[4:8], "big") in (1, 2, 3):
        return "a big-endian GGUF; use the little-endian file"
    advice = "convert the model again" if version < 2 else "update this program or use a file of version 3"
    return f"GGUF version {version}; 2 and 3 are supported; {advice}"
