"""Owns sentences about a machine that a plan must not overlook: cards, links, driver, disk."""

from __future__ import annotations

from appliance.rig.cards import Card, Cards
from appliance.rig.rates import CardRates, Rates
from appliance.rig.size import MIB, format_size
from appliance.rig.storage import Storage

# The image's torch is built with CUDA 13; any driver that supports CUDA 13.0 runs it.
CUDA_LEAST, DRIVER_LEAST = (13, 0), "580.65.06"
CAPABILITY_LEAST = (8, 0)
# A measured copy under this share of what the link advertises is worth a look at the slot (CFG-11).
LINK_SHARE = 0.5
OTHERS_BYTES = 512 * MIB
# Random 4 KiB reads: rows of one token, and tokens a second below which reading a prompt is a wait, or no use at all.
ROWS_A_TOKEN = 16
SLOW_TOKENS_S, USELESS_TOKENS_S = 1000.0, 20.0
# What a turning disk or a far file system is taken to give when nobody measured it.
UNMEASURED_ROWS_S = 150.0


def card_warnings(card: Card, rates: CardRates | None) -> list[str]:
    """What is odd about one card."""
    lines = []
    if card.unified:
        lines.append("its memory is the machine's RAM, so it is counted once, as RAM")
    if (problem := card_problem(card)) is not None:
        lines.append(problem)
    held = [process for process in card.processes if (process.used_bytes or 0) >= OTHERS_BYTES]
    for process in held:
        name = f" ({process.name})" if process.name else ""
        lines.append(f"process {process.pid}{name} holds {format_size(process.used_bytes or 0)} of its memory")
    return lines + link_warnings(card, rates)


def card_problem(card: Card) -> str | None:
    """Why a card cannot compute; None when it can."""
    if card.capability is None:
        return "the driver does not say what it is"
    if tuple(map(int, card.capability.split("."))) < CAPABILITY_LEAST:
        least = ".".join(map(str, CAPABILITY_LEAST))
        return f"its compute capability is {card.capability}, and at least {least} is needed"
    if card.vram_bytes is None:
        return "nobody says how much memory it has: neither the driver nor CUDA"
    return None


def link_warnings(card: Card, rates: CardRates | None) -> list[str]:
    """A link that gives less than it promises; the measurement counts, never what an idle card reports."""
    measured = None if rates is None else rates.to_card_gbps.value
    advertised = None if card.link is None else card.link.advertised_gbps
    if measured is None or advertised is None or measured >= LINK_SHARE * advertised or card.link is None:
        return []
    top = f"PCIe {card.link.top_generation or card.link.generation} x{card.link.top_width or card.link.width}"
    return [
        f"its link gives {measured:g} GB/s measured, under half of the {advertised:.1f} GB/s of {top}: "
        "it may sit in a slot with fewer lanes, or on a riser"
    ]


def driver_problem(cards: Cards) -> str | None:
    """Why the driver cannot run this version; None when it can, or when there is none to judge (CTR-04)."""
    if not cards.cards or cards.cuda is None:
        return None
    found = tuple(int(number) for number in cards.cuda.split("."))
    if found >= CUDA_LEAST:
        return None
    return (
        f"driver {cards.driver} supports CUDA {cards.cuda}; this version needs CUDA {CUDA_LEAST[0]}.{CUDA_LEAST[1]}, "
        f"which is driver {DRIVER_LEAST} or newer"
    )


def table_advice(storage: Storage, rates: Rates, *, table_bytes: int, free_ram_bytes: int) -> tuple[bool, str] | None:
    """What the disk means for an n-gram table that is read from it (CFG-17).

    Returns:
        (usable, sentence), or None when the disk is quick enough. Not usable: keep the table in RAM, or elsewhere.
    """
    measured = rates.storage_rows_per_s.value
    kind = "a turning disk" if storage.rotational else "a network file system" if storage.network else "this disk"
    if measured is None and not (storage.rotational or storage.network):
        return None
    rows = UNMEASURED_ROWS_S if measured is None else measured
    tokens = rows / ROWS_A_TOKEN
    if tokens >= SLOW_TOKENS_S:
        return None
    how = "measured" if measured is not None else "assumed, not measured"
    says = f"{kind} gives {rows:,.0f} random reads a second ({how}), {tokens:,.1f} tokens a second of n-gram rows"
    if table_bytes <= free_ram_bytes:
        return True, f'{says}: keep the table in RAM (home = "ram", {format_size(table_bytes)})'
    if tokens < USELESS_TOKENS_S:
        return False, (
            f"{says}, and the table's {format_size(table_bytes)} do not fit in the {format_size(free_ram_bytes)} of "
            "free RAM: not usable here; move the model to a solid-state disk"
        )
    return True, f"{says}: a prompt of 8,192 tokens waits {8192 / tokens:,.0f} s for them"
