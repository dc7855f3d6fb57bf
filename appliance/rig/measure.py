"""Owns the measuring of a machine: one probe after the other, each with a deadline, a line and an honest reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from appliance.rig.card_probe import measure_cards
from appliance.rig.containers import Containers, probe_containers
from appliance.rig.deadline import Late, within
from appliance.rig.machine import Machine
from appliance.rig.problem import first_line
from appliance.rig.rates import Rates, Reading
from appliance.rig.speed import measure_ram, measure_storage

T = TypeVar("T")
CONTAINERS_S, RAM_S, STORAGE_S, CARDS_S = 15.0, 10.0, 60.0, 180.0


@dataclass(frozen=True, slots=True)
class Step:
    """Progress of the probes, for a line on a terminal or in a screen.

    Attributes:
        probe: which one.
        done: False when it begins, True when it ended.
        says: what it does, then what it found or why it could not.
        number, of: its place.
    """

    probe: str
    done: bool
    says: str
    number: int
    of: int


Progress = Callable[[Step], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """What does the measuring; tests give their own."""

    ram: Callable[[Machine], Reading] = lambda machine: measure_ram(
        machine.ram.budget_bytes, threads=machine.cores.usable
    )
    storage: Callable[[Machine, Path], tuple[Reading, Reading]] = lambda machine, folder: measure_storage(
        folder, machine.storage.free_bytes
    )
    cards: Callable[[Machine, str], Rates] = lambda machine, image: measure_cards(
        [card.uuid for card in machine.cards.cards],
        ram_bytes=machine.ram.budget_bytes,
        image=image,
        deadline_s=CARDS_S,
    )
    containers: Callable[[str], Containers] = probe_containers


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The machine with its speeds, Docker, and what was left out and why."""

    machine: Machine
    containers: Containers
    skipped: str


def measure(
    machine: Machine,
    folder: Path,
    *,
    image: str,
    running: str | None = None,
    progress: Progress = lambda step: None,
    probes: Probes | None = None,
) -> Measured:
    """Measures what costs time; never fails, never disturbs an appliance that runs, and uses a tenth of what is free.

    Args:
        machine: what `probe` found.
        folder: where the model is or shall be.
        image: the appliance's image, which has torch when this Python has none.
        running: where an appliance answers; None when none does.
        progress: told when a probe begins and ends.
        probes: what measures; the real ones by default.
    """
    use = probes or Probes()
    tell = _Telling(progress, of=4)
    containers = tell.run(
        "Docker",
        "asking engine, runtime and Compose",
        lambda: within(CONTAINERS_S, lambda: use.containers(image)),
        show=lambda found: found.note or f"engine {found.engine}, Compose {found.compose}",
        failed=lambda reason: Containers(note=f"Docker does not answer: {reason}"),
    )
    where = running or (f"container {containers.running[0]}" if containers.running else None)
    skipped = "" if where is None else f"not measured, so as not to disturb the appliance that runs ({where})"
    rates = _skip(tell, skipped) if skipped else _speeds(tell, machine, folder, image, use)
    return Measured(machine=dataclasses.replace(machine, rates=rates), containers=containers, skipped=skipped)


def _skip(tell: _Telling, skipped: str) -> Rates:
    for probe in ("RAM", "storage", "cards"):
        tell.skip(probe, skipped)
    gone = Reading(None, skipped)
    return Rates(ram_gbps=gone, storage_gbps=gone, storage_rows_per_s=gone, cards_reason=skipped)


def _speeds(tell: _Telling, machine: Machine, folder: Path, image: str, use: Probes) -> Rates:
    ram = tell.run(
        "RAM",
        "copying with every core",
        lambda: within(RAM_S, lambda: use.ram(machine)),
        show=lambda found: _words(found, "GB/s"),
        failed=lambda reason: Reading(None, reason),
    )
    stream, rows = tell.run(
        "storage",
        f"reading {folder} in sequence and at random",
        lambda: within(STORAGE_S, lambda: use.storage(machine, folder)),
        show=lambda found: f"{_words(found[0], 'GB/s')}; {_words(found[1], 'random reads a second')}",
        failed=lambda reason: (Reading(None, reason), Reading(None, reason)),
    )
    cards = tell.run(
        "cards",
        "copying, reading in place, writing between cards",
        lambda: within(CARDS_S + CONTAINERS_S, lambda: use.cards(machine, image)),
        show=_cards_words,
        failed=lambda reason: Rates(cards_reason=reason),
    )
    return dataclasses.replace(cards, ram_gbps=ram, storage_gbps=stream, storage_rows_per_s=rows)


class _Telling:
    """Counts the probes and turns a failure into its reason."""

    def __init__(self, progress: Progress, *, of: int) -> None:
        self._progress, self._of, self._number = progress, of, 0

    def run(
        self, probe: str, says: str, work: Callable[[], T], *, show: Callable[[T], str], failed: Callable[[str], T]
    ) -> T:
        self._number += 1
        self._progress(Step(probe, False, says, self._number, self._of))
        try:
            found = work()
            words = show(found)
        except Late as error:
            found, words = failed(str(error)), f"could not measure, because there was {error}"
        except Exception as error:  # a probe is never a reason to stop
            reason = first_line(error)
            found, words = failed(reason), f"could not measure, because {reason}"
        self._progress(Step(probe, True, words, self._number, self._of))
        return found

    def skip(self, probe: str, says: str) -> None:
        self._number += 1
        self._progress(Step(probe, True, says, self._number, self._of))


def _words(reading: Reading, unit: str) -> str:
    return f"could not measure, because {reading.reason}" if reading.value is None else f"{reading.value:,g} {unit}"


def _cards_words(rates: Rates) -> str:
    if not rates.cards:
        return f"could not measure, because {rates.cards_reason}"
    return "; ".join(f"{_words(card.to_card_gbps, 'GB/s')} to {card.uuid}" for card in rates.cards)
