"""Owns where a rig is looked for, and the words for a path that cannot be read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import RigError

IMAGE_MARKER = "etc/strata-image"
IMAGE_RIG = Path("/config/rig.toml")
RIG_VARIABLE = "STRATA_RIG"


@dataclass(frozen=True, slots=True)
class RigPath:
    """Where the rig is.

    Attributes:
        path: the file.
        given: somebody named it (a flag or $STRATA_RIG); its absence is then an error.
    """

    path: Path
    given: bool


def in_image(root: Path = Path("/")) -> bool:
    """Whether this is the appliance's own image, which carries a marker file."""
    return (root / IMAGE_MARKER).is_file()


def find_rig(flag: str | None, environment: Mapping[str, str], *, root: Path = Path("/")) -> RigPath:
    """The rig's path: the flag, else $STRATA_RIG, else the default of the place.

    Raises:
        RigError: the flag or the variable is empty.
    """
    for name, value in (("--rig", flag), (f"${RIG_VARIABLE}", environment.get(RIG_VARIABLE))):
        if value is None:
            continue
        if not value.strip():
            raise RigError(f"{name}: the path is empty", hint="name a file, or leave it out for the default place")
        return RigPath(Path(value).expanduser(), given=True)
    if in_image(root):
        return RigPath(IMAGE_RIG, given=False)
    home = Path(environment["HOME"]) if environment.get("HOME") else Path("~").expanduser()
    base = Path(environment["XDG_CONFIG_HOME"]) if environment.get("XDG_CONFIG_HOME") else home / ".config"
    return RigPath(base / "strata" / "rig.toml", given=False)


def read_rig_text(path: Path) -> str:
    """The file as text, a byte-order mark removed.

    Raises:
        RigError: absent, empty, unreadable, a directory, not UTF-8; each in its own words.
    """
    wizard = f"strata-setup --auto --rig {path}"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise RigError(f"{path}: no rig here", hint=f"write one with: {wizard}") from None
    except IsADirectoryError:
        raise RigError(
            f"{path}: this is a directory, not a file", hint="name the file in it, such as rig.toml"
        ) from None
    except NotADirectoryError:
        raise RigError(f"{path}: a part of the path is a file, not a directory", hint="check the path") from None
    except PermissionError:
        raise RigError(f"{path}: this user may not read it", hint=f"make it readable for uid {os.getuid()}") from None
    except OSError as error:
        raise RigError(f"{path}: cannot be read: {error.strerror or error}", hint="check the disk or mount") from error
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in data[:64]:
        raise RigError(f"{path}: written as UTF-16", hint="save as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise RigError(f"{path}:{line}: byte {error.start} is not UTF-8", hint="save as UTF-8") from None
    if not text.strip():
        raise RigError(f"{path}: the file is empty", hint=f"write a rig with: {wizard}")
    return text
