"""Keys and values of one layer in pages, in the card's memory or in pinned memory of the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
"""Storage of keys and values, and its number in the kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPool:
    """Keys and values of one layer; page p of head h holds `page_tokens` tokens in order.

    Attributes:
        keys: float32, bf16 or int8 [pages + 1, kv heads, page tokens, dim], contiguous. The last page is the dummy's.
        values: the same.
        key_scales: float32 [pages + 1, kv heads, page tokens] for int8, else None.
        value_scales: the same.
        anchor: None where keys and values lie on the device. Else any tensor of their dtype on the device: kernels
            reach pinned host memory by its distance from there, because an address made from an integer would cost
            them the wide loads.
        scale_anchor: the same for the scales.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None
    anchor: torch.Tensor | None = None
    scale_anchor: torch.Tensor | None = None

    def __post_init__(self) -> None:
        keys, values = self.keys, self.values
        if keys.dtype not in KINDS or keys.dim() != 4 or not keys.is_contiguous():
            raise ValueError(
                f"keys are contiguous float32, bf16 or int8 [pages, heads, page tokens, dim], "
                f"found {keys.dtype} {list(keys.shape)}"
            )
        if values.dtype != keys.dtype or values.shape != keys.shape or not values.is_contiguous():
            raise ValueError(f"values are {values.dtype} {list(values.shape)}, keys {keys.dtype} {list(keys.shape)}")
        for name, scales in (("key_scales", self.key_scales), ("value_scales", self.value_scales)):
            if (scales is None) == (keys.dtype == torch.int8):
                raise ValueError(
                    f"{name} are needed for int8 and for nothing else, found {keys.dtype} and {scales is not None}"
                )
            if scales is not None and (scales.dtype != torch.float32 or scales.shape != keys.shape[:3]):
                raise ValueError(
                    f"{name} are float32 {list(keys.shape[:3])}, found {scales.dtype} {list(scales.shape)}"
                )

    @classmethod
    def empty(
        cls,
        *,
        pages: int,
        heads: int,
        page_tokens: int,
        dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
        pinned: bool = False,
    ) -> KvPool:
        """A pool of zeros with one page more than `pages`; pinned: in the host's memory, for kernels on `device`."""
        home = torch.device("cpu") if pinned else torch.device(device)
        pin = pinned and torch.cuda.is_available()
        shape = (pages + 1, heads, page_tokens, dim)
        keys, values = (torch.zeros(shape, dtype=dtype, device=home, pin_memory=pin) for _ in range(2))
        scales: list[torch.Tensor | None] = [None, None]
        if dtype == torch.int8:
            scales = [torch.zeros(shape[:3], device=home, pin_memory=pin) for _ in range(2)]
        return cls(
            keys=keys,
            values=values,
            key_scales=scales[0],
            value_scales=scales[1],
            anchor=torch.zeros(64, dtype=dtype, device=device) if pinned else None,
            scale_anchor=torch.zeros(64, device=device) if pinned and dtype == torch.int8 else None,
        )

    @property
    def kind(self) -> int:
        """Number of the storage in the kernels."""
        return KINDS[self.keys.dtype]

    def launch_arguments(self) -> tuple[torch.Tensor | int, ...]:
        """Pointers and distances in elements: keys, values, key scales, value scales."""
        none = self.keys if self.anchor is None else self.anchor
        key_scales, value_scales = self.key_scales, self.value_scales
        return (
            *_reach(self.keys, self.anchor),
            *_reach(self.values, self.anchor),
            *((none, 0) if key_scales is None else _reach(key_scales, self.scale_anchor)),
            *((none, 0) if value_scales is None else _reach(value_scales, self.scale_anchor)),
        )


def _reach(tensor: torch.Tensor, anchor: torch.Tensor | None) -> tuple[torch.Tensor, int]:
    """A pointer the kernel may be given, and the tensor's distance from it in elements."""
    if anchor is None:
        return tensor, 0
    return anchor, (tensor.data_ptr() - anchor.data_ptr()) // tensor.element_size()
