"""Owns where models are kept, and the folder of compose.yaml beside it."""

from __future__ import annotations

from pathlib import Path

from appliance.rig.paths import in_image


def models_folder(rig: Path) -> Path:
    """The image's mount, the folder beside compose.yaml, or one beside the rig."""
    if in_image():
        return Path("/models")
    project = project_folder()
    return (project or rig.absolute().parent) / "models"


def project_folder(start: Path | None = None) -> Path | None:
    """The folder of compose.yaml: the working folder, or the checkout that this package runs from."""
    for folder in (start or Path.cwd(), Path(__file__).parents[2]):
        if (folder / "compose.yaml").is_file() and (folder / "Dockerfile").is_file():
            return folder
    return None
