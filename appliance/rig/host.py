"""Owns small facts of the host: its distribution, how to install the NVIDIA toolkit there, and kills for memory."""

from __future__ import annotations

from pathlib import Path

from appliance.rig.limits import groups

AFTER = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
# Family of distributions, as ID and ID_LIKE of /etc/os-release name it, and its command.
INSTALL = {
    "debian": "sudo apt-get install -y nvidia-container-toolkit",
    "ubuntu": "sudo apt-get install -y nvidia-container-toolkit",
    "fedora": "sudo dnf install -y nvidia-container-toolkit",
    "rhel": "sudo dnf install -y nvidia-container-toolkit",
    "suse": "sudo zypper install nvidia-container-toolkit",
    "arch": "sudo pacman -S nvidia-container-toolkit",
}


def toolkit_fix(root: Path = Path("/")) -> str:
    """The command that lets Docker hand cards over, for this distribution."""
    for name in _families(root):
        if name in INSTALL:
            return f"{INSTALL[name]} && {AFTER}"
    return f"install nvidia-container-toolkit with this system's packages, then: {AFTER}"


def _families(root: Path) -> list[str]:
    try:
        lines = (root / "etc/os-release").read_text(errors="replace").splitlines()
    except OSError:
        return []
    values = dict(line.partition("=")[::2] for line in lines)
    words = f"{values.get('ID', '')} {values.get('ID_LIKE', '')}".replace('"', "").lower().split()
    return [part for word in words for part in (word, word.split("-")[0])]


def memory_kills(root: Path = Path("/")) -> int:
    """Processes that the kernel ended for memory in this process's own group since it was made (MEM-02)."""
    for group in groups(root, "memory"):
        name = "memory.events" if group.version == 2 else "memory.oom_control"
        try:
            lines = (group.folder / name).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) == 2 and words[0] == "oom_kill" and words[1].isdigit():
                return int(words[1])
        return 0
    return 0
