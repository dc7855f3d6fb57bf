"""Measures what only a card's own code can: `python -m appliance.engine.probe --json`, a process of its own.

It takes at most a tenth of the free memory of each card and of the RAM, and says what it could not measure.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from appliance.rig.card_facts import link_of
from appliance.rig.rates import CardRates, Rates, Reading

MIB = 1024**2
MOST_BYTES = 256 * MIB
LEAST_BYTES = MIB
SHARE = 10  # of free memory, one part in this many
REPEATS = 5
PEER_BYTES = MIB
MATRIX = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the process; prints progress on stderr and the result on stdout."""
    parser = argparse.ArgumentParser(prog="python -m appliance.engine.probe")
    parser.add_argument("--json", action="store_true", help="the result as JSON, on stdout")
    parser.add_argument("--ram-bytes", type=int, default=MOST_BYTES * SHARE, help="free RAM; a tenth of it is used")
    parser.add_argument("cards", nargs="*", metavar="UUID", help="cards to measure; all by default")
    parsed = parser.parse_args(arguments)
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    rates = probe_cards(parsed.cards, ram_bytes=parsed.ram_bytes, say=lambda line: print(line, file=sys.stderr))
    print(json.dumps(dataclasses.asdict(rates), indent=None if parsed.json else 2))
    return 0


def probe_cards(uuids: Sequence[str], *, ram_bytes: int, say: Callable[[str], None]) -> Rates:
    """Measures the cards; what fails becomes a reason.

    Args:
        uuids: cards to measure; empty for all that are visible.
        ram_bytes: free RAM.
        say: told what comes next.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        return Rates(cards_reason=f"torch is not installed here ({error})")
    if not torch.cuda.is_available():
        return Rates(cards_reason="torch sees no card here")
    seen = {_uuid(torch, number): number for number in range(torch.cuda.device_count())}
    chosen = {uuid: number for uuid, number in seen.items() if not uuids or uuid in uuids}
    missing = [uuid for uuid in uuids if uuid not in seen]
    found = []
    for uuid, number in chosen.items():
        say(f"card {number}: copies, reads in place, VRAM, products")
        found.append(_card(torch, uuid, number, ram_bytes))
    say("peer access: writing and reading back")
    for position, (uuid, number) in enumerate(chosen.items()):
        peers, note = _peers(torch, number, {n: u for u, n in chosen.items() if u != uuid})
        found[position] = dataclasses.replace(found[position], peers=peers, peer_note=note)
    reason = "" if found else "none of these cards is visible here"
    if found and missing:
        reason = f"not visible here: {', '.join(missing)}"
    return Rates(cards=tuple(found), cards_reason=reason)


def _uuid(torch: Any, number: int) -> str:
    text = str(torch.cuda.get_device_properties(number).uuid)
    return text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


def _card(torch: Any, uuid: str, number: int, ram_bytes: int) -> CardRates:
    try:
        free, _ = torch.cuda.mem_get_info(number)
    except RuntimeError as error:
        gone = Reading(None, f"the card does not answer: {_first_line(error)}")
        return CardRates(uuid=uuid, to_card_gbps=gone, from_card_gbps=gone, in_place_gbps=gone, vram_gbps=gone)
    size = min(MOST_BYTES, free // SHARE // 2, ram_bytes // SHARE) // MIB * MIB
    if size < LEAST_BYTES:
        short = Reading(None, f"a tenth of the free memory is under {LEAST_BYTES // MIB} MiB")
        return CardRates(uuid=uuid, to_card_gbps=short, from_card_gbps=short, in_place_gbps=short, vram_gbps=short)
    with torch.cuda.device(number):
        try:
            return _measured(torch, uuid, number, _Link(torch, number, size), free)
        except RuntimeError as error:
            refused = Reading(None, f"{size // MIB} MiB of pinned RAM were refused: {_first_line(error)}")
            return CardRates(
                uuid=uuid, to_card_gbps=refused, from_card_gbps=refused, in_place_gbps=refused, vram_gbps=refused
            )
        finally:
            torch.cuda.empty_cache()


def _measured(torch: Any, uuid: str, number: int, link: _Link, free_bytes: int) -> CardRates:
    to_card = _reading(lambda: link.rate(link.to_card))
    generation, width = link.under_load(uuid)
    return CardRates(
        uuid=uuid,
        to_card_gbps=to_card,
        from_card_gbps=_reading(lambda: link.rate(link.from_card)),
        in_place_gbps=_reading(lambda: link.rate(link.in_place)),
        vram_gbps=_reading(lambda: link.rate(link.in_vram)),
        tflops=_reading(lambda: _tflops(torch, number, free_bytes)),
        generation=generation,
        width=width,
    )


class _Link:
    """Buffers on both sides of one card's link, and the transfers between them."""

    def __init__(self, torch: Any, number: int, size_bytes: int) -> None:
        self.torch, self.bytes = torch, size_bytes
        self.host = torch.zeros(size_bytes // 4, dtype=torch.int32, pin_memory=True)
        self.card = torch.zeros(size_bytes // 4, dtype=torch.int32, device=f"cuda:{number}")

    def to_card(self) -> None:
        self.card.copy_(self.host, non_blocking=True)

    def from_card(self) -> None:
        self.host.copy_(self.card, non_blocking=True)

    def in_place(self) -> None:
        _kernels().read_in_place(self.host)

    def in_vram(self) -> None:
        _kernels().read_in_place(self.card)

    def rate(self, work: Callable[[], None]) -> float:
        """Median GB/s after a warm-up, which also wakes the link from its rest."""
        for _ in range(2):
            work()
        self.torch.cuda.synchronize()
        return self.bytes / statistics.median(self._seconds(work) for _ in range(REPEATS)) / 1e9

    def _seconds(self, work: Callable[[], None]) -> float:
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        last.synchronize()
        return max(float(first.elapsed_time(last)) / 1000, 1e-9)

    def under_load(self, uuid: str) -> tuple[int | None, int | None]:
        """Generation and width while copies run; at rest the card lowers them."""
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
        except Exception:  # the library has no common error before it is loaded
            return None, None
        with contextlib.suppress(nvml.NVMLError):
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            for _ in range(20):
                self.to_card()
            link = link_of(nvml, handle)
            self.torch.cuda.synchronize()
            if link is not None:
                return link.generation, link.width
        return None, None


def _kernels() -> Any:
    return importlib.import_module("kernels.bandwidth")


def _tflops(torch: Any, number: int, free_bytes: int) -> float:
    """Dense FP16 products of square matrices, as large as a tenth of the free memory allows."""
    side = MATRIX
    while 3 * 2 * side * side > free_bytes // SHARE and side > 512:
        side //= 2
    left = torch.zeros(side, side, dtype=torch.float16, device=f"cuda:{number}")
    out = torch.empty_like(left)
    for _ in range(3):
        torch.matmul(left, left, out=out)
    torch.cuda.synchronize(number)
    began = time.perf_counter()
    for _ in range(10):
        torch.matmul(left, left, out=out)
    torch.cuda.synchronize(number)
    return float(10 * 2 * side**3 / (time.perf_counter() - began) / 1e12)


def _peers(torch: Any, number: int, others: Mapping[int, str]) -> tuple[tuple[str, ...], str]:
    """Cards whose memory this one wrote directly, read back to be sure: some links say yes and lose data."""
    reached, notes = [], []
    for other, uuid in others.items():
        try:
            if not torch.cuda.can_device_access_peer(number, other):
                continue
            source = torch.arange(PEER_BYTES // 4, dtype=torch.int32, device=f"cuda:{number}")
            target = torch.full_like(source, -1, device=f"cuda:{other}")
            target.copy_(source)
            torch.cuda.synchronize(other)
            back = target.cpu()
            if bool((back == source.cpu()).all()):
                reached.append(uuid)
            else:
                notes.append(f"card {other} was written and read back differently")
        except RuntimeError as error:
            notes.append(f"card {other}: {_first_line(error)}")
    return tuple(reached), "; ".join(notes)


def _reading(measure: Callable[[], float]) -> Reading:
    try:
        return Reading.of(round(measure(), 2))
    except Exception as error:  # a card, a compiler or a driver that fails is a reason, not a crash
        return Reading(None, _first_line(error))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
