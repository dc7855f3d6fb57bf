"""Owns `strata probe`: the machine as a table or as JSON, and its speeds when asked."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path

from appliance.errors import ApplianceError, ExitCode
from appliance.rig.cards import Card
from appliance.rig.containers import IMAGE
from appliance.rig.load import load_rig
from appliance.rig.machine import Machine, probe
from appliance.rig.measure import Measured, Step, measure
from appliance.rig.paths import find_rig
from appliance.rig.rates import Reading
from appliance.rig.running import find_running
from appliance.rig.schema import ServerTable
from appliance.rig.size import format_size
from appliance.rig.warnings import card_warnings


def probe_machine(arguments: argparse.Namespace) -> ExitCode:
    """Prints what the machine is, and with --deep how quick it is."""
    folder = Path(arguments.folder) if arguments.folder else Path.cwd()
    machine = probe(folder)
    measured = None
    if arguments.deep:
        measured = measure(machine, folder, image=IMAGE, running=running_appliance(arguments.rig), progress=_tell)
        machine = measured.machine
    if arguments.json:
        found = dataclasses.asdict(machine)
        if measured is not None:
            found["containers"] = dataclasses.asdict(measured.containers)
        print(json.dumps(found, indent=2, default=str))
        return ExitCode.OK
    _table(machine)
    if measured is not None:
        _speeds(measured)
    return ExitCode.OK


def running_appliance(rig: str | None) -> str | None:
    """Where an appliance answers, from the rig's address, or the default one where there is no valid rig."""
    try:
        server = load_rig(find_rig(rig, os.environ).path).rig.server
    except ApplianceError:
        server = ServerTable()
    stage = find_running(server.host, server.port)
    return None if stage is None else f"{server.host} port {server.port}, {stage}"


def _tell(step: Step) -> None:
    print(f"[{step.number}/{step.of}] {step.probe}: {step.says}", file=sys.stderr)


def _table(machine: Machine) -> None:
    print(f"system     {machine.system}" + (f", in {machine.container}" if machine.container else ""))
    for card in machine.cards.cards:
        print(f"card {card.index}     {_card(card)}")
        for sentence in card_warnings(card, machine.rates.card(card.uuid)):
            print(f"           note: {sentence}")
    if machine.cards.driver:
        print(f"driver     {machine.cards.driver}, CUDA {machine.cards.cuda or 'unknown'}")
    if machine.cards.note:
        print(f"cards      {machine.cards.note}")
    ram = machine.ram
    limit = f", limit {format_size(ram.limit_bytes)} in {ram.limit_source}" if ram.limit_bytes is not None else ""
    print(f"RAM        {format_size(ram.total_bytes)}{limit}, {format_size(ram.budget_bytes)} to use")
    processor = machine.processor
    lock = "no limit" if processor.memlock_bytes is None else format_size(processor.memlock_bytes)
    print(f"locked     {lock}" + (f", {len(processor.numa)} memory nodes" if len(processor.numa) > 1 else ""))
    quota = f", quota {machine.cores.quota:g}" if machine.cores.quota is not None else ""
    physical = f" on {processor.physical_cores} physical" if processor.physical_cores else ""
    print(f"cores      {machine.cores.allowed}{physical}{quota}, {processor.name or 'unknown processor'}")
    print(f"           {' '.join(processor.isa) or 'no instruction set of interest'}")
    disk = machine.storage
    size = "unknown" if disk.free_bytes is None else f"{format_size(disk.free_bytes)} free"
    kind = {None: "", True: ", turning disk", False: ", solid state"}[disk.rotational]
    print(f"storage    {disk.folder}: {size}, {disk.filesystem or 'unknown file system'}{kind}")


def _card(card: Card) -> str:
    vram = "VRAM unknown" if card.vram_bytes is None else format_size(card.vram_bytes)
    parts = [card.name, vram, "free unknown" if card.free_bytes is None else f"{format_size(card.free_bytes)} free"]
    if card.unified:
        parts.append("shared with RAM")
    if card.capability:
        parts.append(f"capability {card.capability}")
    if card.link is not None:
        parts.append(f"PCIe {card.link.generation} x{card.link.width} at the moment")
    if card.power_limit_w is not None:
        parts.append(f"{card.power_limit_w:g} W")
    if card.display:
        parts.append("drives a screen")
    return ", ".join([*parts, card.uuid, card.bus_id])


def _speeds(measured: Measured) -> None:
    rates, containers = measured.machine.rates, measured.containers
    print(f"RAM speed  {_words(rates.ram_gbps, 'GB/s')}")
    stream, rows = _words(rates.storage_gbps, "GB/s"), _words(rates.storage_rows_per_s, "random reads a second")
    print(f"disk speed {stream}" if stream == rows else f"disk speed {stream}; {rows}")
    for card in rates.cards:
        print(f"link       {card.uuid}: to the card {_words(card.to_card_gbps, 'GB/s')}")
        print(f"           from the card {_words(card.from_card_gbps, 'GB/s')}")
        print(f"           read in place {_words(card.in_place_gbps, 'GB/s')}")
        print(f"           VRAM {_words(card.vram_gbps, 'GB/s')}, products {_words(card.tflops, 'TFLOPS')}")
        print(f"           reaches {', '.join(card.peers) or 'no other card'}{card.peer_note and '; '}{card.peer_note}")
    if not rates.cards:
        print(f"link       could not measure, because {rates.cards_reason}")
    nvidia = {None: "unknown", True: "hands cards over", False: "cannot hand cards over"}[containers.nvidia]
    print(f"docker     {containers.note or f'engine {containers.engine}, Compose {containers.compose}'}; {nvidia}")


def _words(reading: Reading, unit: str) -> str:
    return f"could not measure, because {reading.reason}" if reading.value is None else f"{reading.value:,g} {unit}"
