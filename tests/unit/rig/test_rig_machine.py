"""The look at the machine, from small file systems made for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from appliance.rig.cards import probe_cards
from appliance.rig.limits import probe_cores, probe_ram
from appliance.rig.machine import probe
from appliance.rig.size import GIB, MIB
from tests.builders.machines import fake_root

HOST = {"proc/meminfo": f"MemTotal: {128 * MIB} kB\nMemAvailable: {100 * MIB} kB\n"}  # 128 GiB and 100 GiB
V2 = "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = (
    "35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
)
IN_V2 = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2}
NO_LIMIT_V1 = "9223372036854771712"


def group_v2(maximum: str, *, current: int = 0, cache: int = 0, at: str = "") -> dict[str, str]:
    folder = f"sys/fs/cgroup{at}"
    return {
        f"{folder}/memory.max": f"{maximum}\n",
        f"{folder}/memory.current": f"{current}\n",
        f"{folder}/memory.stat": f"anon 1\ninactive_file {cache}\n",
    }


@pytest.mark.parametrize(
    ("files", "limit", "budget", "source"),
    [
        pytest.param({}, None, 100 * GIB, "", id="MEM-01 no cgroup"),
        pytest.param(
            {
                "proc/self/cgroup": "0::/\n",
                "proc/self/mountinfo": V2,
                **group_v2(str(48 * GIB), current=3 * GIB, cache=GIB),
            },
            48 * GIB,
            46 * GIB,
            "/sys/fs/cgroup/memory.max",
            id="MEM-01 v2 limit minus use, dropped cache not counted",
        ),
        pytest.param(
            {**IN_V2, **group_v2("max")},
            None,
            100 * GIB,
            "",
            id="MEM-01 v2 max",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/outer/inner\n",
                "proc/self/mountinfo": V2,
                **group_v2("max", at="/outer/inner"),
                **group_v2(str(20 * GIB), current=5 * GIB, at="/outer"),
                **group_v2(str(90 * GIB)),
            },
            20 * GIB,
            15 * GIB,
            "/sys/fs/cgroup/outer/memory.max",
            id="MEM-01 v2 nested, the group above is the smaller",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n",
                "proc/self/mountinfo": V1.format(root="/docker/abc"),
                "sys/fs/cgroup/memory/memory.limit_in_bytes": str(8 * GIB),
                "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes": str(16 * GIB),
                "sys/fs/cgroup/memory/memory.usage_in_bytes": str(2 * GIB),
                "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {GIB}\nhierarchical_memory_limit {8 * GIB}\n",
            },
            8 * GIB,
            7 * GIB,
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            id="MEM-01 v1 in a container without its own namespace",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:memory:/a\n",
                "proc/self/mountinfo": V1.format(root="/"),
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": NO_LIMIT_V1,
                "sys/fs/cgroup/memory/a/memory.stat": f"hierarchical_memory_limit {6 * GIB}\n",
            },
            6 * GIB,
            6 * GIB,
            "/sys/fs/cgroup/memory/a/memory.stat",
            id="MEM-01 v1 limit of a group above that is not visible",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:memory:/a\n",
                "proc/self/mountinfo": V1.format(root="/"),
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": NO_LIMIT_V1,
            },
            None,
            100 * GIB,
            "",
            id="MEM-01 v1 without limit",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/\n",
                "proc/self/mountinfo": V2,
                **group_v2(str(4 * GIB)),
                "sys/fs/cgroup/memory.swap.max": str(64 * GIB),
            },
            4 * GIB,
            4 * GIB,
            "/sys/fs/cgroup/memory.max",
            id="MEM-01 swap is not memory",
        ),
        pytest.param(
            {**IN_V2, **group_v2(str(4 * GIB), current=5 * GIB)},
            4 * GIB,
            0,
            "/sys/fs/cgroup/memory.max",
            id="MEM-01 already over",
        ),
    ],
)
def test_the_smallest_limit_counts(
    tmp_path: Path, files: dict[str, str], limit: int | None, budget: int, source: str
) -> None:
    ram = probe_ram(fake_root(tmp_path, HOST | files))
    assert (ram.total_bytes, ram.limit_bytes, ram.budget_bytes, ram.limit_source) == (128 * GIB, limit, budget, source)
    assert ram.ceiling_bytes == (limit or 128 * GIB)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"proc/self/mountinfo": V2, "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5, id="v2"),
        pytest.param({"proc/self/mountinfo": V2, "sys/fs/cgroup/cpu.max": "max 100000\n"}, None, id="v2 max"),
        pytest.param(
            {
                "proc/self/mountinfo": V1.format(root="/"),
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            0.5,
            id="v1",
        ),
    ],
)
def test_cpu_quota(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    group = "0::/\n" if "cgroup2" in files.get("proc/self/mountinfo", "") else "2:cpu,cpuacct:/\n"
    cores = probe_cores(fake_root(tmp_path, {"proc/self/cgroup": group} | files))
    assert cores.quota == quota
    assert cores.usable == (cores.allowed if quota is None else max(1, min(cores.allowed, int(quota))))


class NVMLError(Exception):
    """As pynvml's."""


def nvml(**changes: object) -> SimpleNamespace:
    functions = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"580.65.06",
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=32 * GIB, free=31 * GIB),
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (12, 0),
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetName": lambda handle: b"NVIDIA Test",
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=f"0000:0{handle}:00.0"),
    }
    return SimpleNamespace(**(functions | changes))


def fails(*_: object) -> object:
    raise NVMLError("Not Supported")


def test_cards_of_the_driver() -> None:
    found = probe_cards(nvml())
    assert found.driver == "580.65.06"
    assert [(card.index, card.uuid, card.name, card.capability) for card in found.cards] == [
        (0, "GPU-0", "NVIDIA Test", "12.0"),
        (1, "GPU-1", "NVIDIA Test", "12.0"),
    ]
    assert found.cards[0].vram_bytes == 32 * GIB


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        pytest.param({"nvmlInit": fails}, "driver does not answer (not supported)", id="no driver"),
        pytest.param({"nvmlDeviceGetCount": lambda: 0}, "lists none", id="no card"),
        pytest.param({"nvmlDeviceGetCount": fails}, "driver failed", id="driver fails"),
    ],
)
def test_no_card_comes_with_the_reason(changes: dict[str, object], note: str) -> None:
    found = probe_cards(nvml(**changes))
    assert found.cards == ()
    assert found.note is not None
    assert note in found.note


def test_memory_that_the_driver_does_not_say_is_unknown_and_not_zero() -> None:
    for memory in (fails, lambda handle: SimpleNamespace(total=0, free=0)):
        assert probe_cards(nvml(nvmlDeviceGetMemoryInfo=memory)).cards[0].vram_bytes is None


def test_probe_of_a_whole_machine(tmp_path: Path) -> None:
    root = fake_root(tmp_path, HOST | {"etc/strata-image": "", ".dockerenv": ""})
    found = probe(tmp_path / "not" / "there", root=root, cards=lambda: probe_cards(nvml()))
    assert (found.image, found.container, len(found.cards.cards)) == (True, "docker", 2)
    assert found.storage.folder == tmp_path
    assert found.storage.free_bytes is not None
    assert found.cores.usable >= 1
