"""Owns the claim of a serving process on its cards, so that two rigs that name one card do not meet in its memory."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from appliance.errors import MachineError
from appliance.rig.cards import Card


class Claim:
    """Locks that last as long as the process; the system takes them back however it ends."""

    def __init__(self, cards: Sequence[Card], *, rig: Path | None, folder: Path | None = None) -> None:
        """Claims every card.

        Args:
            cards: those that will compute.
            rig: who claims them, for whoever comes second.
            folder: where the locks are; the system's folder for temporary files by default. A container has its own.

        Raises:
            MachineError: another process serves on one of them.
        """
        self._held: list[int] = []
        folder = folder or Path(tempfile.gettempdir())
        for card in cards:
            path = folder / f"strata-{card.uuid.replace('/', '_')}.lock"
            descriptor = _open(path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                owner = os.read(descriptor, 4096).decode(errors="replace").strip()
                os.close(descriptor)
                self.release()
                raise MachineError(
                    f"card {card.index} ({card.name}) is in use by another rig: {owner or 'nobody says which'}",
                    hint="stop it, or name other cards in [cards]",
                ) from error
            self._held.append(descriptor)
            _sign(descriptor, f"process {os.getpid()} serves {rig or 'a rig without a file'}")

    def release(self) -> None:
        """Gives all cards back."""
        while self._held:
            os.close(self._held.pop())


def _open(path: Path) -> int:
    """The lock file; another user's may be locked too, though not written."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _sign(descriptor: int, says: str) -> None:
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, says.encode(), 0)
