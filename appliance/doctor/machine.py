"""Owns the checks of the machine: driver, cards, Docker, locked RAM, memory, disk, compiler."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.doctor.facts import Facts, Finding, Verdict, passed, size_words
from appliance.rig.cards import Card
from appliance.rig.containers import COMPOSE_LEAST
from appliance.rig.recorded import with_recorded
from appliance.rig.size import GIB, format_size
from appliance.rig.warnings import card_warnings, driver_problem, table_advice

DISK_LEAST_BYTES = 2 * GIB


def driver(facts: Facts) -> Iterator[Finding]:
    """The driver is there and new enough (CTR-03, CTR-04)."""
    cards = facts.machine.cards
    problem = driver_problem(cards)
    if problem is not None:
        yield Finding(check="driver", verdict=Verdict.FAIL, says=problem, fix="update the NVIDIA driver of the host")
    elif cards.cards:
        yield passed("driver", f"{cards.driver}, CUDA {cards.cuda or 'unknown'}, {len(cards.cards)} card(s)")
    elif facts.wants_cards:
        yield Finding(
            check="driver",
            verdict=Verdict.FAIL,
            says=cards.note or "no card",
            fix='check nvidia-smi on the host and compose.override.yaml, or set devices = "cpu"',
        )
    else:
        yield Finding(check="driver", verdict=Verdict.SKIPPED, says=cards.note or "no card; none is asked for")


def cards(facts: Facts) -> Iterator[Finding]:
    """Every card, what is odd about it, and what changed since the rig was written."""
    machine = with_recorded(facts.machine, facts.loaded.rig.machine) if facts.loaded else facts.machine
    chosen = facts.examined.device.cards if facts.examined else ()
    for card in machine.cards.cards:
        lines = card_warnings(card, machine.rates.card(card.uuid))
        says = f"{card.name}, {size_words(card.vram_bytes)}, {size_words(card.free_bytes)} free, {card.uuid}"
        verdict = Verdict.NOTE if lines else Verdict.OK
        yield Finding(check=f"card {card.index}", verdict=verdict, says="; ".join([says, *lines]))
    for card in chosen:
        yield from _vram(facts, card)
    for sentence in facts.examined.differences if facts.examined else ():
        yield Finding(
            check="changes", verdict=Verdict.NOTE, says=sentence, fix="strata-setup --auto measures the machine anew"
        )


def _vram(facts: Facts, card: Card) -> Iterator[Finding]:
    """Free VRAM against the plan (MEM-04); the plan itself is made from what is free, so a failure is in its error."""
    if facts.running:
        yield Finding(check="VRAM", verdict=Verdict.SKIPPED, says=f"an appliance uses it: {facts.running}")
    elif facts.examined is not None and card.free_bytes is not None:
        held = "; ".join(f"process {p.pid} {p.name} holds {size_words(p.used_bytes)}" for p in card.processes)
        says = f"card {card.index}: the plan fits in the {size_words(card.free_bytes)} that are free"
        yield passed("VRAM", says + (f"; {held}" if held else ""))


def docker(facts: Facts) -> Iterator[Finding]:
    """Engine, NVIDIA runtime and Compose (CTR-01, CTR-02)."""
    found = facts.containers
    if found.engine is None:
        inside = facts.machine.image
        verdict = Verdict.SKIPPED if inside else Verdict.NOTE
        says = "inside the container Docker is not seen; run strata doctor on the host too" if inside else found.note
        yield Finding(check="docker", verdict=verdict, says=says)
        return
    yield passed("docker", f"engine {found.engine}, image {'built' if found.image else 'not built yet'}")
    if found.nvidia is False and facts.machine.cards.cards:
        yield Finding(
            check="runtime",
            verdict=Verdict.FAIL,
            says='Docker cannot hand cards over; compose would say: could not select device driver "nvidia" with '
            "capabilities: [[gpu]]",
            fix=facts.toolkit_fix,
        )
    elif facts.machine.cards.cards:
        yield passed("runtime", "Docker hands cards over")
    least = ".".join(map(str, COMPOSE_LEAST))
    if not found.compose_is_new_enough:
        yield Finding(
            check="compose",
            verdict=Verdict.FAIL,
            says=f"found Compose {found.compose or 'nowhere'}; compose.yaml needs {least} or newer",
            fix="install the package docker-compose-plugin (not the old docker-compose)",
        )
    else:
        yield passed("compose", f"{found.compose}, at least {least}")


def memlock(facts: Facts) -> Iterator[Finding]:
    """RAM that may be locked, against the plan (CTR-10)."""
    limit = facts.machine.processor.memlock_bytes
    placement = facts.examined.placement if facts.examined else None
    pinned = placement.pinned_bytes if placement is not None else 0
    if limit is None:
        yield passed("memlock", "no limit on locked RAM")
    elif pinned > limit:
        yield Finding(
            check="memlock",
            verdict=Verdict.FAIL,
            says=f"{format_size(limit)} may be locked and the plan pins {format_size(pinned)}",
            fix="memlock: -1 below ulimits in compose.override.yaml (strata-setup writes it), or ulimit -l unlimited",
        )
    else:
        yield Finding(
            check="memlock",
            verdict=Verdict.NOTE if facts.machine.cards.cards else Verdict.OK,
            says=f"{format_size(limit)} of RAM may be locked here; the plan pins {format_size(pinned)}",
        )


def memory(facts: Facts) -> Iterator[Finding]:
    """RAM or the container limit against the plan, and kills (MEM-01, MEM-02)."""
    ram = facts.machine.ram
    limit = f" (limit {format_size(ram.limit_bytes)} in {ram.limit_source})" if ram.limit_bytes is not None else ""
    if facts.examined is not None:
        placement = facts.examined.placement
        used = f"{format_size(placement.total_bytes)} of {format_size(placement.budget_bytes)} are planned"
        yield passed("RAM", f"{used}{limit}")
    else:
        yield Finding(
            check="RAM", verdict=Verdict.SKIPPED, says=f"{format_size(ram.budget_bytes)} free{limit}; no plan"
        )
    if facts.memory_kills:
        yield Finding(
            check="kills",
            verdict=Verdict.NOTE,
            says=f"the kernel ended {facts.memory_kills} process(es) here for want of memory",
            fix="give the container more memory, or lower parallel, max_tokens or [experts] ram",
        )


def disk(facts: Facts) -> Iterator[Finding]:
    """Free space, and whether the disk is quick enough for the n-gram table (CFG-17)."""
    storage, machine = facts.machine.storage, facts.machine
    if storage.free_bytes is not None and storage.free_bytes < DISK_LEAST_BYTES:
        yield Finding(
            check="disk",
            verdict=Verdict.NOTE,
            says=f"{storage.folder}: only {format_size(storage.free_bytes)} are free",
            fix="free some space: compiled kernels, parked conversations and logs need it",
        )
    elif storage.free_bytes is not None:
        yield passed(
            "disk", f"{storage.folder}: {format_size(storage.free_bytes)} free, {storage.filesystem or 'unknown'}"
        )
    if facts.loaded is None or facts.examined is None or facts.examined.placement.ngram_home not in ("mmap", "direct"):
        return
    rates = with_recorded(machine, facts.loaded.rig.machine).rates
    table = facts.examined.model.tensors.get("per_layer_token_embd.weight")
    advice = table_advice(
        storage,
        rates,
        table_bytes=table.byte_count if table else 0,
        free_ram_bytes=max(0, facts.examined.placement.free_bytes),
    )
    if advice is not None:
        usable, says = advice
        yield Finding(check="table", verdict=Verdict.NOTE if usable else Verdict.FAIL, says=says)


def compiler(facts: Facts) -> Iterator[Finding]:
    """The C compiler that kernels need at their first start (CTR-06)."""
    if facts.machine.cards.cards and not facts.compiler and facts.machine.image:
        yield Finding(
            check="compiler",
            verdict=Verdict.FAIL,
            says="no C compiler for the kernels' launchers",
            fix="set CC, or build the image anew",
        )
