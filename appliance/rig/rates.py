"""Owns measured speeds of a machine: each a number, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass

NOT_ASKED = "not measured yet: strata probe --deep"


@dataclass(frozen=True, slots=True)
class Reading:
    """A measured number, or None and why."""

    value: float | None = None
    reason: str = NOT_ASKED

    @classmethod
    def of(cls, value: float) -> Reading:
        """A number that was measured."""
        return cls(value, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRates:
    """Speeds of one card.

    Attributes:
        uuid: of the card.
        to_card_gbps, from_card_gbps: pinned copies.
        in_place_gbps: a kernel that reads pinned RAM without a copy.
        vram_gbps: VRAM bandwidth.
        tflops: dense FP16 products with float32 sums.
        generation, width: of the PCIe link while copying; None when the driver does not say.
        peers: UUIDs of the cards it reached, proved by writing and reading back.
        peer_note: why a pair could not be tried, "" otherwise.
    """

    uuid: str
    to_card_gbps: Reading = Reading()
    from_card_gbps: Reading = Reading()
    in_place_gbps: Reading = Reading()
    vram_gbps: Reading = Reading()
    tflops: Reading = Reading()
    generation: int | None = None
    width: int | None = None
    peers: tuple[str, ...] = ()
    peer_note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Speeds of one machine.

    Attributes:
        ram_gbps: reads and writes of RAM, all cores.
        storage_gbps: sequential reads of the model's disk, past the page cache.
        storage_rows_per_s: random 4 KiB reads a second of that disk at queue depth 64.
        cards: those that were measured.
        cards_reason: why no card was, "" otherwise.
    """

    ram_gbps: Reading = Reading()
    storage_gbps: Reading = Reading()
    storage_rows_per_s: Reading = Reading()
    cards: tuple[CardRates, ...] = ()
    cards_reason: str = NOT_ASKED

    def card(self, uuid: str) -> CardRates | None:
        """The speeds of one card; None when it was not measured."""
        return next((card for card in self.cards if card.uuid == uuid), None)
