"""Which architectures can be served, and where their spec and model live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from appliance.errors import ModelFileError
from appliance.gguf.metadata import Metadata


@dataclass(frozen=True)
class Architecture:
    """Import strings `module:name`, so that the table needs neither torch nor the model's code.

    Attributes:
        spec: `read_spec(model, *, draft)`.
        model: `load_model(spec, *, plan, progress)`.
    """

    spec: str
    model: str


ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType(
    {
        "qwen4exp": Architecture(
            spec="appliance.model.qwen4exp.spec:read_spec",
            model="appliance.model.qwen4exp.load:load_model",
        ),
    }
)

_HINTS: Final = {
    "clip": "this is a vision file (mmproj); it goes beside a model, not in its place",
    "qwen4_exp": "convert the model again with a converter that writes qwen4exp",
}


def architecture(metadata: Metadata) -> Architecture:
    """The table row for a file.

    Raises:
        ModelFileError: `general.architecture` is absent, no string, or not in the table; spelling counts.
    """
    supported = ", ".join(ARCHITECTURES)
    if "general.architecture" not in metadata:
        raise ModelFileError(
            f"{metadata.where}: metadata key general.architecture is absent; supported: {supported}",
            hint="is this a later part of a split set, or not a model?",
        )
    name = metadata.str_("general.architecture")
    if name not in ARCHITECTURES:
        raise ModelFileError(
            f"{metadata.where}: general.architecture is {name!r:.80}; supported: {supported}",
            hint=_HINTS.get(name.lower(), "use a GGUF of a supported model"),
        )
    return ARCHITECTURES[name]
