"""CTR-01: the look before anything is built, on hosts that are data; each refusal says what to do next here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "preflight"
DRIVER = '#!/bin/sh\necho "0, NVIDIA GeForce RTX 4090"\n'
BOTH = '{"nvidia":{},"runc":{}}'
PLAIN = '{"runc":{}}'


def docker(info: str, *, compose: str = "2.27.1", fails: bool = False) -> str:
    version = f"echo {compose}" if compose else "exit 1"
    return f"#!/bin/sh\ncase $1 in info) echo '{info}'; exit {int(fails)} ;; compose) {version} ;; esac\n"


def run(folder: Path, tools: dict[str, str], release: str) -> subprocess.CompletedProcess[str]:
    for name, text in tools.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "id").symlink_to("/usr/bin/id")
    (folder / "os-release").write_text(release)
    environment = {"PATH": str(folder), "OS_RELEASE": str(folder / "os-release")}
    return subprocess.run(
        ["/bin/sh", str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize(
    ("tools", "release", "says"),
    [
        pytest.param(
            {"docker": docker(PLAIN), "nvidia-smi": DRIVER},
            'ID=ubuntu\nID_LIKE="debian"\n',
            (
                'could not select device driver "nvidia" with capabilities: [[gpu]]',
                "sudo apt-get install -y nvidia-container-toolkit && sudo nvidia-ctk runtime configure",
            ),
            id="no toolkit on Ubuntu",
        ),
        pytest.param(
            {"docker": docker(PLAIN), "nvidia-smi": DRIVER},
            'ID="rocky"\nID_LIKE="rhel centos fedora"\n',
            ("sudo dnf install -y nvidia-container-toolkit",),
            id="no toolkit on Rocky",
        ),
        pytest.param(
            {"docker": docker(PLAIN), "nvidia-smi": DRIVER},
            "ID=nixos\n",
            ("install with your package manager: nvidia-container-toolkit",),
            id="no toolkit on something else",
        ),
        pytest.param({}, "ID=debian\n", ("Docker is not installed", "docs.docker.com"), id="no Docker"),
        pytest.param(
            {"docker": docker("permission denied while trying to connect", fails=True)},
            "ID=debian\n",
            ("may not ask Docker", "usermod -aG docker"),
            id="not in the group",
        ),
        pytest.param(
            {"docker": docker("Cannot connect to the Docker daemon", fails=True)},
            "ID=debian\n",
            ("Docker does not run", "systemctl start docker"),
            id="not running",
        ),
        pytest.param(
            {"docker": docker(BOTH, compose="")},
            "ID=debian\n",
            ("no Compose plugin", "sudo apt-get install -y docker-compose-plugin"),
            id="no Compose",
        ),
        pytest.param(
            {"docker": docker(BOTH, compose="v2.19.9")}, "ID=arch\n", ("needs 2.20", "sudo pacman -S"), id="CTR-02 old"
        ),
        pytest.param(
            {"docker": docker(BOTH), "nvidia-smi": "#!/bin/sh\necho mismatch\nexit 18\n"},
            "ID=debian\n",
            ("does not answer: mismatch", "reboot the host"),
            id="CTR-04 driver and library differ",
        ),
    ],
)
def test_what_is_missing_is_said_with_the_next_step(
    tmp_path: Path, tools: dict[str, str], release: str, says: tuple[str, ...]
) -> None:
    done = run(tmp_path, tools, release)
    assert done.returncode == 1
    for words in says:
        assert words in done.stderr
    assert done.stderr.splitlines()[-1].startswith("next: ")


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        pytest.param(
            {"docker": docker(BOTH), "nvidia-smi": DRIVER}, "hand over:\n0, NVIDIA GeForce RTX 4090", id="card"
        ),
        pytest.param({"docker": docker(BOTH, compose="3.0.0"), "nvidia-smi": DRIVER}, "hand over", id="newer Compose"),
        pytest.param({"docker": docker(PLAIN)}, "no NVIDIA driver", id="no card"),
    ],
)
def test_what_is_ready(tmp_path: Path, tools: dict[str, str], says: str) -> None:
    done = run(tmp_path, tools, "ID=debian\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert says in done.stdout
