"""Keeps what a bench found in the rig, where the planner and the wizard read it."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import tomlkit
from tomlkit.items import Table

from appliance.bench.rig_bench import RigFound
from appliance.cost import USERS
from appliance.errors import UsageError
from appliance.examine import Examined
from appliance.planning.measured import Subject, subject_of
from appliance.rig.write import write_rig

# The prompt whose speed is kept is the longest up to this: what people paste.
PROMPT_TOKENS = 8192


def record(examined: Examined, found: RigFound, *, today: str | None = None) -> str:
    """Writes [machine.bench] and says so in a sentence.

    Raises:
        UsageError: one client was not measured, and the planner starts from one.
        RigError: the rig cannot be written.
    """
    subject = subject_of(examined.loaded, examined.machine, examined.spec, examined.placement)
    values = bench_values(found, subject, today=today or datetime.now(UTC).date().isoformat())
    path = examined.loaded.path
    assert path is not None, "--record measures a rig that is a file"
    written = write_rig(path, with_bench(path.read_text(encoding="utf-8"), values))
    kept = f"; the rig before it is {written.backup.name}" if written.backup is not None else ""
    return f"{path}: [machine.bench] holds these numbers now; strata plan and the wizard show them{kept}"


def bench_values(found: RigFound, subject: Subject, *, today: str) -> dict[str, Any]:
    """Keys of [machine.bench]: of the first round, which is the one with drafts where there are any.

    Raises:
        UsageError: one client was not measured.
    """
    first = [line for line in found.lines if line.time.draft_max == found.lines[0].time.draft_max]
    users = {f"users_{line.time.clients}": round(line.time.tokens_per_s, 1) for line in first}
    if "users_1" not in users:
        raise UsageError("--record needs --clients 1 among the clients, which every plan starts from")
    most = first[-1]
    prompts = [one for one in found.prompts if one.tokens <= PROMPT_TOKENS]
    values = {"measured_on": today, **dataclasses.asdict(subject)}
    values |= {name: users.get(name) for name in (f"users_{count}" for count in USERS)}
    values["prompt"] = round(max(prompts, key=lambda one: one.tokens).tokens_per_s, 1) if prompts else None
    values["hit_share"] = None if most.hit_share is None else round(most.hit_share, 4)
    values["acceptance"] = round(first[0].time.accepted[0], 4) if first[0].time.accepted else None
    return {name: value for name, value in values.items() if value is not None}


def with_bench(text: str, values: dict[str, Any]) -> str:
    """A rig's text with these numbers instead of earlier ones; everything else as it is, comments too."""
    document = tomlkit.parse(text)
    machine: Table = document.setdefault("machine", tomlkit.table())
    table = tomlkit.table()
    table.update(values)
    machine["bench"] = table
    return tomlkit.dumps(document)
