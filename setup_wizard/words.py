"""Owns the words of the screens: bars of letters, speeds as ranges, what a change costs; no meaning by colour."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence

from appliance.placement import Placement
from appliance.plan_words import speed_lines as plan_speed_lines
from appliance.planning.bars import Part, ram_parts
from appliance.planning.plan import PlanView, difference
from appliance.rig.cards import Card
from appliance.rig.machine import Machine
from appliance.rig.schema import TABLES
from appliance.rig.size import format_size
from appliance.rig.warnings import card_warnings
from setup_wizard.draft import Judged
from setup_wizard.fields import question

LETTERS = {
    "dense": "D",
    "slots": "S",
    "KV": "K",
    "buffers": "B",
    "cache": "C",
    "reserve": "R",
    "others": "O",
    "experts": "E",
    "n-gram table": "N",
    "staging": "G",
    "runtime": "U",
    "headroom": "H",
    "weights": "W",
}
BAR = 40


def bar(parts: Sequence[Part], total_bytes: int, *, width: int = BAR) -> str:
    """Parts as runs of letters, what is left as dots; every part that is there has a letter at least."""
    cells = ""
    for part in parts:
        if part.size_bytes > 0 and part.name != "free":
            count = max(1, round(width * part.size_bytes / max(1, total_bytes)))
            cells += LETTERS.get(part.name, part.name[:1].upper()) * count
    return f"[{cells[:width].ljust(width, '.')}]"


def legend(parts: Sequence[Part]) -> str:
    """What the letters are, with bytes."""
    named = (part for part in parts if part.size_bytes > 0 and part.name != "free")
    return ", ".join(
        f"{LETTERS.get(part.name, part.name[:1].upper())} {part.name} {format_size(part.size_bytes)}" for part in named
    )


def plan_lines(judged: Judged) -> list[str]:
    """The plan: memory as bars, expected hits and speeds, or why it is refused, with the numbers (CFG-19)."""
    lines = [f"REFUSED: {problem}" for problem in judged.problems]
    if judged.placement is not None:
        names = Counter(stage.card.name for stage in judged.placement.stages)
        where = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in names.items()) or "the CPU"
        lines.append(f"{judged.placement.parallel} conversations of {judged.placement.max_tokens:,} tokens on {where}")
    if judged.plan is not None:
        lines += _card_lines(judged.plan)
    elif judged.placement is not None:
        lines += [*_ram_lines(judged.placement), judged.cpu_speed]
    return lines + [f"note: {note}" for note in judged.notes]


def _card_lines(plan: PlanView) -> list[str]:
    if plan.placement is None or plan.speed is None:
        return [f"REFUSED: {plan.refusal}"]
    lines = []
    for found in plan.bars:
        total = found.card.vram_bytes or sum(part.size_bytes for part in found.parts)
        lines.append(f"card {found.card.index} {bar(found.parts, total)} of {format_size(total)}")
        lines.append(f"  {legend(found.parts)}")
    budget = plan.placement.budget_bytes
    lines.append(f"RAM    {bar(plan.ram, budget)} of {format_size(budget)}")
    lines.append(f"  {legend(plan.ram)}")
    return [*lines, *plan_speed_lines(plan)]


def _ram_lines(placement: Placement) -> list[str]:
    parts = ram_parts(placement)
    return [
        f"RAM    {bar(parts, placement.budget_bytes)} of {format_size(placement.budget_bytes)}",
        f"  {legend(parts)}",
    ]


def change(base: Judged, now: Judged) -> str:
    """What the draft costs or brings against the recommendation, in one line."""
    if not now.accepted:
        return ""  # the refusal says it
    if base.plan is not None and now.plan is not None:
        return f"against the recommendation: {difference(base.plan, now.plan)}"
    if base.placement is None or now.placement is None:
        return ""
    parts = []
    for words, old, new in (
        ("conversations", base.placement.parallel, now.placement.parallel),
        ("tokens each", base.placement.max_tokens, now.placement.max_tokens),
    ):
        if old != new:
            parts.append(f"{words} {old:,} to {new:,}")
    more = now.placement.total_bytes - base.placement.total_bytes
    if more:
        parts.append(f"{format_size(abs(more))} {'more' if more > 0 else 'less'} RAM")
    return "against the recommendation: " + (", ".join(parts) or "no difference worth naming")


def machine_lines(machine: Machine) -> list[str]:
    """What the box has."""
    lines = []
    for card in machine.cards.cards:
        lines.append(f"card {card.index}  {card_words(card)}")
        lines += [f"        note: {sentence}" for sentence in card_warnings(card, machine.rates.card(card.uuid))]
    if machine.cards.driver:
        lines.append(f"driver  {machine.cards.driver}, CUDA {machine.cards.cuda or 'unknown'}")
    if machine.cards.note:
        lines.append(f"cards   {machine.cards.note}")
    ram = machine.ram
    limit = f", limit {format_size(ram.limit_bytes)} in {ram.limit_source}" if ram.limit_bytes is not None else ""
    lines.append(f"RAM     {format_size(ram.total_bytes)}{limit}, {format_size(ram.budget_bytes)} to use")
    lines.append(f"cores   {machine.cores.usable}")
    disk = machine.storage
    free = "unknown" if disk.free_bytes is None else f"{format_size(disk.free_bytes)} free"
    turning = ", a turning disk" if disk.rotational else ", over the network" if disk.network else ""
    lines.append(f"disk    {disk.folder}: {free}{turning}")
    return lines


def card_words(card: Card) -> str:
    """A card in one line."""
    vram = "memory unknown" if card.vram_bytes is None else format_size(card.vram_bytes)
    free = "" if card.free_bytes is None else f", {format_size(card.free_bytes)} free"
    return f"{card.name}, {vram}{free}"


def explained(text: str) -> list[str]:
    """The rig with each key's sentence above it, for reading; [machine] as it is."""
    lines, table = [], ""
    for line in text.splitlines():
        if line.startswith("["):
            table = line.strip("[] ")
        name = line.partition("=")[0].strip()
        if "=" in line and table in TABLES and table != "machine" and name in TABLES[table].model_fields:
            lines.append(f"  # {question(f'{table}.{name}').says}")
        lines.append(line)
    return lines


def changes(present: str | None, text: str) -> list[str]:
    """The lines that differ from the rig that is there, with - and +."""
    if present is None:
        return []
    found = difflib.unified_diff(
        present.splitlines(), text.splitlines(), "the rig that is there", "new", n=1, lineterm=""
    )
    return list(found)


def speed_lines(machine: Machine) -> list[str]:
    """Measured speeds, one a line; nothing where nothing was measured."""
    rates = machine.rates
    rows = [("RAM", rates.ram_gbps, "GB/s"), ("disk", rates.storage_gbps, "GB/s in sequence")]
    rows += [(f"link of {card.uuid}", card.to_card_gbps, "GB/s to the card") for card in rates.cards]
    return [
        f"{name}: {reading.value:,.1f} {unit} measured" for name, reading, unit in rows if reading.value is not None
    ]
