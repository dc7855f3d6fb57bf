"""Docker, the processor and memory of this machine, as a probe finds them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from appliance.rig.containers import probe_containers
from appliance.rig.host import memory_kills, toolkit_fix
from appliance.rig.processor import probe_processor
from appliance.rig.size import MIB
from tests.builders.machines import fake_root


def client(**info: object) -> SimpleNamespace:
    def missing(name: str) -> None:
        raise LookupError(name)

    return SimpleNamespace(
        version=lambda: {"Version": "28.2.2"},
        info=lambda: info,
        images=SimpleNamespace(get=missing),
        containers=SimpleNamespace(
            list=lambda filters: [
                SimpleNamespace(name="strata-strata-1", labels={"com.docker.compose.service": "strata"}),
                SimpleNamespace(name="db-1", labels={"com.docker.compose.service": "db"}),
            ]
        ),
    )


@pytest.mark.parametrize(
    ("info", "nvidia"),
    [
        pytest.param({"Runtimes": {"runc": {}, "nvidia": {}}}, True, id="runtime"),
        pytest.param({"Runtimes": {}, "DiscoveredDevices": [{"ID": "nvidia.com/gpu=0"}]}, True, id="CDI"),
        pytest.param({"Runtimes": {"runc": {}}}, False, id="CTR-01 neither"),
        pytest.param({"Runtimes": None}, False, id="CTR-01 an engine that says nothing"),
    ],
)
def test_whether_docker_hands_cards_over(info: dict[str, object], nvidia: bool) -> None:
    found = probe_containers("i", connect=lambda: client(**info), command=lambda words: "v2.26.1-4\n")
    assert (found.engine, found.nvidia, found.compose, found.image) == ("28.2.2", nvidia, "2.26.1", None)
    assert found.running == ("strata-strata-1",)
    assert found.note == ""


@pytest.mark.parametrize(
    ("version", "enough"),
    [("2.20.0", True), ("v2.19.9", False), ("1.29.2", False), (None, False), ("2.40.3-desktop.1", True)],
    ids=["CTR-02 the least", "CTR-02 one below", "CTR-02 the old program", "CTR-02 none", "with a suffix"],
)
def test_compose_must_be_new_enough(version: str | None, enough: bool) -> None:
    found = probe_containers("i", connect=lambda: client(), command=lambda words: version)
    assert found.compose_is_new_enough is enough


@pytest.mark.parametrize(
    ("error", "words"),
    [
        pytest.param(OSError("('Connection aborted.', PermissionError(13))"), "group docker", id="not allowed"),
        pytest.param(OSError("FileNotFoundError(2)"), "Docker does not run here", id="stopped"),
        pytest.param(ValueError("odd"), "Docker does not answer: odd", id="anything else"),
    ],
)
def test_an_engine_that_does_not_answer(error: Exception, words: str) -> None:
    def refuse() -> object:
        raise error

    assert words in probe_containers("i", connect=refuse, command=lambda words: None).note


# -- processor, host, a running appliance


def test_the_processor(tmp_path: Path) -> None:
    """CTR-10: how much RAM may be locked is known before the plan pins it."""
    root = fake_root(
        tmp_path,
        {
            "proc/cpuinfo": "model name\t: Test 7950X\nflags\t\t: fpu avx2 fma avx512f\nphysical id : 0\n"
            "core id : 1\n\n"
            "model name\t: Test 7950X\nflags\t\t: fpu avx2 fma avx512f\nphysical id : 0\ncore id : 1\n",
            "proc/self/limits": "Max locked memory         8388608              8388608              bytes\n",
            "proc/self/status": "CapEff:\t0000000000000000\n",
            "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       65536 kB\n",
            "sys/devices/system/node/node0/cpulist": "0-15\n",
            "sys/devices/system/node/node1/cpulist": "16-31\n",
        },
    )
    found = probe_processor(root)
    assert (found.name, found.isa, found.physical_cores) == ("Test 7950X", ("avx2", "fma", "avx512f"), 1)
    assert [(node.index, node.total_bytes, node.cores) for node in found.numa] == [
        (0, 64 * MIB, "0-15"),
        (1, None, "16-31"),
    ]
    assert found.memlock_bytes == 8 * MIB
    (root / "proc/self/status").write_text("CapEff:\t000001ffffffffff\n")
    assert probe_processor(root).memlock_bytes is None
    assert probe_processor(tmp_path / "nothing") == probe_processor(tmp_path / "nothing else")


@pytest.mark.parametrize(
    ("release", "words"),
    [
        pytest.param("ID=ubuntu\nID_LIKE=debian\n", "apt-get install", id="CTR-01 Ubuntu"),
        pytest.param('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "dnf install", id="CTR-01 Rocky"),
        pytest.param('ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\n', "zypper", id="CTR-01 openSUSE"),
        pytest.param("ID=void\n", "with this system's packages", id="CTR-01 another"),
    ],
)
def test_the_fix_is_the_distributions_own(tmp_path: Path, release: str, words: str) -> None:
    fix = toolkit_fix(fake_root(tmp_path, {"etc/os-release": release}))
    assert words in fix
    assert "nvidia-ctk runtime configure" in fix


def test_kills_for_memory_are_counted(tmp_path: Path) -> None:
    """MEM-02: after a kill the next look says so."""
    root = fake_root(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/memory.events": "low 0\noom 3\noom_kill 2\n",
        },
    )
    assert memory_kills(root) == 2
    assert memory_kills(tmp_path / "nothing") == 0
