"""Memory that cards read: made ready by a thread, registered block by block, and refused in numbers (MEM-03)."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

import pytest
import torch

from appliance.errors import MachineError
from appliance.model.qwen4exp.device import pinned
from appliance.model.qwen4exp.device.pinned import HostBlock, HostPool

MIB = 1 << 20


@dataclass
class Driver:
    """Stands for the CUDA runtime: registers so many bytes and refuses what is beyond."""

    most: int
    registered: dict[int, int] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.asked.append(size)
        if sum(self.registered.values()) + size > self.most:
            return 2
        self.registered[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.registered[address]
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver(most=8 * MIB)
    monkeypatch.setattr(pinned, "_runtime", lambda: found)
    return found


def test_blocks_are_registered_as_they_are_and_given_back(driver: Driver) -> None:
    """No byte more than was asked: not rounded up to a power of two. A block without bytes is left out."""
    pool = HostPool([3 * MIB, 0, 5 * MIB], cuda=True)
    assert [pool.words(number).numel() * 4 for number in range(3)] == [3 * MIB, 0, 5 * MIB]
    assert driver.asked == [3 * MIB, 5 * MIB]
    assert pool.size_bytes == 8 * MIB
    assert all(address % 4096 == 0 for address in driver.registered)
    pool.words(2).fill_(7)
    assert int(pool.words(2)[-1]) == 7
    pool.release()
    assert driver.registered == {}
    assert pool.size_bytes == 0


def test_a_refusal_names_the_block_and_what_is_pinned_already(driver: Driver) -> None:
    pool = HostPool([5 * MIB, 4 * MIB], cuda=True)
    pool.words(0)
    with pytest.raises(
        MachineError, match=r"4 MiB of RAM cannot be pinned .* beside 5 MiB .* free \(CUDA error 2\)"
    ) as told:
        pool.words(1)
    assert "memlock" in str(told.value)
    pool.release()
    assert driver.registered == {}


def test_a_dropped_block_is_given_back_before_its_addresses_go_to_another(driver: Driver) -> None:
    block = HostBlock(MIB, cuda=True)
    block.register()
    assert list(driver.registered) == [block.bytes.data_ptr()]
    del block
    gc.collect()
    assert driver.registered == {}


def test_the_cpu_pins_nothing(driver: Driver) -> None:
    pool = HostPool([MIB], cuda=False)
    assert pool.words(0).dtype == torch.int32
    assert driver.asked == []
    pool.release()
