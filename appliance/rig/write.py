"""Owns writing a rig so that nothing is lost: comments kept, the earlier file backed up, all or nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import AoT, Table
from tomlkit.toml_document import TOMLDocument

from appliance.errors import RigError
from appliance.rig.cards import Card
from appliance.rig.machine import Machine
from appliance.rig.migrate import migrated
from appliance.rig.rates import Reading
from appliance.rig.schema import BUILTIN, SCHEMA
from appliance.rig.size import format_size

HEADER = "What this machine serves. Every key: docs/rig.md; check a change with: strata check"


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a write: the file, and the copy of the earlier one if it was replaced."""

    path: Path
    backup: Path | None
    changed: bool


def render(text: str | None, machine: Machine, *, today: str | None = None) -> str:
    """A rig for this machine.

    Keys that stand in `text` stay as they are, with their comments; what is missing is filled in; [machine] is
    measured anew, and an older schema's keys move to where they are now.

    Args:
        text: the present file; None or blank to start anew.
        machine: what was measured.
        today: day of the measurement, today's by default.
    """
    if text is not None and text.strip():
        document = tomlkit.parse(migrated(text))
    else:
        document = tomlkit.document()
        document.add(tomlkit.comment(HEADER))
    if "schema" not in document:
        _put_first(document, "schema", SCHEMA)
    keyed = "keys_file" in document.get("server", {})
    for table, values in _recommended(machine, keyed=keyed).items():
        if "host" in document.get(table, {}):
            values.pop("open", None)  # who chose the address chose who may ask
        target = _table(document, table)
        for key, value in values.items():
            if key not in target:
                target[key] = value
    _refresh(document, machine, today or datetime.now(UTC).date().isoformat())
    return tomlkit.dumps(document)


def _recommended(machine: Machine, *, keyed: bool) -> dict[str, dict[str, Any]]:
    """What is written where nothing is.

    Sizes are left to the planner at every start, so that a container with less memory than before still starts.
    Inside the image the server must listen beyond loopback to be reached through a published port, and compose
    publishes on the host's loopback only.
    """
    server: dict[str, Any] = {"host": "0.0.0.0" if machine.image else "127.0.0.1", "port": 8080}
    if machine.image and not keyed:
        server["open"] = True
    return {
        "model": {"path": BUILTIN},
        "cards": {"devices": "auto"},
        "context": {"max_tokens": "auto"},
        "serving": {"parallel": "auto"},
        "server": server,
    }


def _refresh(document: TOMLDocument, machine: Machine, today: str) -> None:
    target = _table(document, "machine")
    rates = machine.rates
    measured: dict[str, Any] = {"driver": machine.cards.driver, "ram_limit": format_size(machine.ram.ceiling_bytes)}
    before = target.unwrap()
    for key in ("ram_gbps", "storage_gbps", "storage_rows_per_s"):  # what was measured once stays until it is again
        reading: Reading = getattr(rates, key)
        measured[key] = before.get(key) if reading.value is None else float(reading.value)
    earlier = {card.get("uuid"): card for card in before.get("card", [])}
    cards = [_card(machine, card, earlier.get(card.uuid, {})) for card in machine.cards.cards]
    cards = [{key: value for key, value in card.items() if value is not None} for card in cards]
    same = all(before.get(key) == value for key, value in measured.items()) and before.get("card", []) == cards
    if same and "measured_on" in target:
        return
    for key, value in {"measured_on": today, **measured}.items():
        if value is not None:
            target[key] = value
        elif key in target:
            del target[key]
    if "card" in target:
        del target["card"]
    if cards:
        tables = AoT([])
        for card in cards:
            table = tomlkit.table()
            table.update(card)
            tables.append(table)
        target["card"] = tables


def _card(machine: Machine, card: Card, earlier: Mapping[str, Any]) -> dict[str, Any]:
    """One [[machine.card]]; what an earlier measurement found of a card that is still there stays."""
    values: dict[str, Any] = {
        "name": card.name,
        "uuid": card.uuid,
        "vram": None if card.vram_bytes is None else format_size(card.vram_bytes),
        "capability": card.capability,
        **{key: earlier.get(key) for key in ("link_gbps", "vram_gbps", "tflops", "peers")},
    }
    rates = machine.rates.card(card.uuid)
    if rates is None:
        return values
    link = [reading.value for reading in (rates.to_card_gbps, rates.from_card_gbps, rates.in_place_gbps)]
    if None not in link:
        values["link_gbps"] = link
    for key in ("vram_gbps", "tflops"):
        reading: Reading = getattr(rates, key)
        values[key] = values[key] if reading.value is None else reading.value
    values["peers"] = [other.index for other in machine.cards.cards if other.uuid in rates.peers]
    return values


def _table(document: TOMLDocument, name: str) -> Table:
    if name not in document:
        if document.body and not document.as_string().endswith("\n\n"):
            document.add(tomlkit.nl())
        document.add(name, tomlkit.table())
    table: Table = document[name]
    return table


def _put_first(document: TOMLDocument, key: str, value: int) -> None:
    """A key above the first header, below the comments that open the file."""
    if not any(isinstance(item, (Table, AoT)) for _, item in document.body):
        document.add(key, value)
        return
    text = document.as_string()
    parsed = tomlkit.parse(f"{key} = {value}\n\n{text}")
    document.clear()
    document.body.clear()
    for name, item in parsed.body:
        document.append(name, item)


def write_rig(path: Path, text: str) -> Written:
    """Replaces the file in one step, the earlier one kept beside it.

    A file mounted on its own cannot be replaced, so it is written in place after the backup.

    Raises:
        RigError: the place cannot be written; the file is as it was.
    """
    try:
        earlier = path.read_bytes() if path.exists() else None
        if earlier == text.encode():
            return Written(path, None, changed=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        backup = _backup(path, earlier) if earlier else None
        _replace(path, text.encode())
    except OSError as error:
        reason = (
            "the file system is read-only" if error.errno == errno.EROFS else (error.strerror or str(error)).lower()
        )
        raise RigError(
            f"{path}: cannot be written: {reason}", hint="mount the folder writable, or name another"
        ) from error
    return Written(path, backup, changed=True)


def _backup(path: Path, data: bytes) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    backup = path.with_name(f"{path.name}.{stamp}.bak")
    with backup.open("xb") as file:
        file.write(data)
        os.fsync(file.fileno())
    return backup


def _replace(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(path.stat().st_mode & 0o7777 if path.exists() else 0o644)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if error.errno not in (errno.EBUSY, errno.EXDEV):
            raise
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
