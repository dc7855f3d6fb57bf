"""The named keys file: only hashes of high-entropy random keys, written atomically, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import tempfile
import time
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from appliance.errors import RigError, UsageError

KEY_PREFIX = "sk-strata-"
KEY_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LATEST_S = 253_402_300_799  # the last second that has a date


class StoredKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key as the file holds it.

    A plain SHA-256 is enough: the key has 256 random bits, so there is nothing to guess or to salt against.
    """

    name: Annotated[str, msgspec.Meta(pattern=rf"^{NAME.pattern}\Z")]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    created: Annotated[int, msgspec.Meta(ge=0, le=LATEST_S)]


class KeysFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file's contents."""

    keys: tuple[StoredKey, ...] = ()
    version: Literal[1] = 1


def hash_key(key: bytes) -> str:
    """Hex SHA-256 of the key."""
    return hashlib.sha256(key).hexdigest()


def load_keys(path: Path) -> KeysFile:
    """Reads the file.

    Raises:
        RigError: it is absent, unreadable or not a keys file.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=KeysFile)
    except FileNotFoundError:
        raise RigError(f"keys file {path} does not exist", hint="make one with: strata keys add NAME") from None
    except OSError as error:
        raise RigError(f"keys file {path} cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RigError(
            f"keys file {path} is not a keys file", hint="make a new one with: strata keys add NAME"
        ) from error


def add_key(path: Path, name: str) -> str:
    """Adds a key and returns it; it cannot be read again.

    Raises:
        UsageError: the name is not allowed or taken.
        RigError: the file cannot be read or written.
    """
    if NAME.fullmatch(name) is None:
        raise UsageError(f"key name {name!r} is not allowed: 1 to 64 letters, digits, dots, dashes and underscores")
    held = load_keys(path).keys if path.exists() else ()
    if any(key.name == name for key in held):
        raise UsageError(f"keys file {path} already has a key named {name}", hint=f"strata keys remove {name}")
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    stored = StoredKey(name=name, sha256=hash_key(key.encode()), created=int(time.time()))
    _write(path, KeysFile(keys=(*held, stored)))
    return key


def list_keys(path: Path) -> tuple[StoredKey, ...]:
    """The keys' names and dates; raises RigError like load_keys."""
    return load_keys(path).keys


def remove_key(path: Path, name: str) -> None:
    """Removes a key; a running server refuses it from the next request on.

    Raises:
        UsageError: there is no key of that name.
        RigError: the file cannot be read or written.
    """
    held = load_keys(path).keys
    left = tuple(key for key in held if key.name != name)
    if len(left) == len(held):
        names = ", ".join(key.name for key in held) or "none"
        raise UsageError(f"keys file {path} has no key named {name!r}; it has: {names}")
    _write(path, KeysFile(keys=left))


def _write(path: Path, keys: KeysFile) -> None:
    """Replaces the file in one step; readable by its owner alone."""
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # mkstemp creates with 0600
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(keys), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise RigError(f"keys file {path} cannot be written: {error.strerror}") from error


class KeyRing:
    """The keys a running server accepts; follows changes of the file."""

    def __init__(self, path: Path) -> None:
        """Raises RigError when the file cannot be read: a server with a broken keys file must not start."""
        self._path = path
        self._stamp = self._look()
        self._keys = load_keys(path).keys

    def verify(self, key: bytes) -> str | None:
        """The name of the key, or None. Takes the same time whichever key it is compared with."""
        self._follow()
        digest = hash_key(key)
        found = None
        for stored in self._keys:
            if hmac.compare_digest(stored.sha256, digest):
                found = stored.name
        return found

    def _look(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _follow(self) -> None:
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = load_keys(self._path).keys
        except RigError:
            self._keys = ()  # a file that is gone or broken admits nobody
