"""A stand-in for the driver's management library: cards as data, answers that can be taken away."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from appliance.rig.size import GIB


class NVMLError(Exception):
    """As the library raises it."""

    def __init__(self, text: str = "Not Supported", value: int = 3) -> None:
        super().__init__(text)
        self.value = value


@dataclass
class FakeCard:
    """One card, an RTX 4090 at rest unless told otherwise.

    Attributes:
        memory: (total, free); None raises "Not Supported".
        slices: MIG slices as (uuid, total, free); None where MIG is not known.
        unknown: questions that raise.
    """

    uuid: str = "GPU-1"
    name: str = "NVIDIA GeForce RTX 4090"
    bus_id: str = "00000000:01:00.0"
    memory: tuple[int, int] | None = (24 * GIB, 23 * GIB)
    capability: tuple[int, int] = (8, 9)
    link: tuple[int, int, int, int] = (1, 16, 4, 16)
    processes: tuple[tuple[int, int | None], ...] = ()
    slices: tuple[tuple[str, int, int], ...] | None = None
    unknown: frozenset[str] = frozenset()


@dataclass
class FakeNvml:
    """The library."""

    cards: list[FakeCard] = field(default_factory=list)
    driver: str = "580.65.06"
    cuda: int = 13000
    broken: NVMLError | None = None
    NVMLError = NVMLError

    def nvmlInit(self) -> None:
        if self.broken is not None:
            raise self.broken

    def nvmlShutdown(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return self.driver.encode()

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.cuda

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeCard:
        return self.cards[index]

    def __getattr__(self, question: str) -> Any:
        if question not in ANSWERS:
            raise AttributeError(question)

        def answer(handle: FakeCard, *arguments: int) -> Any:
            if question in handle.unknown:
                raise NVMLError
            return ANSWERS[question](handle, *arguments)

        return answer


def _memory(card: FakeCard) -> SimpleNamespace:
    if card.memory is None:
        raise NVMLError
    return SimpleNamespace(total=card.memory[0], free=card.memory[1])


def _mig(card: FakeCard) -> tuple[int, int]:
    if card.slices is None:
        raise NVMLError
    return (int(bool(card.slices)),) * 2


def _slice(card: FakeCard, number: int) -> FakeCard:
    if number >= len(card.slices or ()):
        raise NVMLError("Not Found")
    uuid, total, free = (card.slices or ())[number]
    return FakeCard(uuid=uuid, name=f"{card.name} MIG", bus_id=card.bus_id, memory=(total, free))


ANSWERS: dict[str, Any] = {
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetCudaComputeCapability": lambda card: card.capability,
    "nvmlDeviceGetUUID": lambda card: card.uuid,
    "nvmlDeviceGetName": lambda card: card.name,
    "nvmlDeviceGetPciInfo": lambda card: SimpleNamespace(busId=card.bus_id.encode()),
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda card: card.link[0],
    "nvmlDeviceGetCurrPcieLinkWidth": lambda card: card.link[1],
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda card: card.link[2],
    "nvmlDeviceGetMaxPcieLinkWidth": lambda card: card.link[3],
    "nvmlDeviceGetDisplayMode": lambda card: 1,
    "nvmlDeviceGetEnforcedPowerLimit": lambda card: 450_000,
    "nvmlDeviceGetComputeRunningProcesses": lambda card: [
        SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in card.processes
    ],
    "nvmlDeviceGetGraphicsRunningProcesses": lambda card: [],
    "nvmlDeviceGetMaxClockInfo": lambda card, clock: {1: 2520, 2: 10501}[clock],
    "nvmlDeviceGetMemoryBusWidth": lambda card: 384,
    "nvmlDeviceGetNumGpuCores": lambda card: 16384,
    "nvmlDeviceGetMigMode": _mig,
    "nvmlDeviceGetMaxMigDeviceCount": lambda card: 7,
    "nvmlDeviceGetMigDeviceHandleByIndex": _slice,
}
