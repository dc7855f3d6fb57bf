"""Owns the log: one line per event on standard error, key=value, no prompt text, no secrets."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

LOGGER = logging.getLogger("strata")
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:%+@[]")


class KeyValueFormatter(logging.Formatter):
    """Writes `time=... level=... event="..." key=value`; a line break in a value never ends the line."""

    def format(self, record: logging.LogRecord) -> str:
        """One line for the record."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = getattr(record, "fields", {})
        parts = [f"time={time.replace('+00:00', 'Z')}", f"level={record.levelname.lower()}"]
        message = record.getMessage()
        ready = message.startswith("event=") and "\n" not in message  # written as key=value already
        parts.append(message if ready else f"event={quoted(message)}")
        parts += [f"{name}={quoted(value)}" for name, value in fields.items() if value is not None]
        if record.exc_info:
            parts.append(f"traceback={quoted(self.formatException(record.exc_info))}")
        return " ".join(parts)


def quoted(value: object) -> str:
    """The value as it stands in a log line: bare when that is unambiguous, else in quotes with escapes."""
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if text and all(character in _PLAIN for character in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in escaped) + '"'


def start_log(level: int = logging.INFO) -> None:
    """Sends every logger of the process to standard error in this form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in ("strata", "appliance"):
        logging.getLogger(name).setLevel(level)


def say(event: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Logs an event with its fields; a field that is None is left out."""
    LOGGER.log(level, event, extra={"fields": fields})


def warn(event: str, **fields: object) -> None:
    """Logs an event that somebody should read."""
    say(event, level=logging.WARNING, **fields)
