"""The packing kernel: the same words as torch's packer for every type, odd shapes, pairs, places and bad scales."""

from __future__ import annotations

import pytest
import torch

from kernels.planes import FORMATS, pack, pack_gate_up, word_count
from kernels.planes.fast import Items, can_pack, pack_items, pack_quickly
from kernels.planes.fields import SPLIT
from kernels.quant import nonfinite
from kernels.quant.table import FORMATS as BLOCKS
from tests.builders.blocks import model_rows

POISON = -0x21524111
SHAPES = [(1, 5, 640), (2, 1, 160), (1, 33, 32), (1, 2, 320)]
NAMES = [f"{name}-{form}" for name, form in SPLIT]


def shapes_of(name: str) -> list[tuple[int, int, int]]:
    """Items, rows, columns; types of large blocks have the rows with other numbers of blocks."""
    fits = [one for one in SHAPES if one[2] % BLOCKS[name].block_weights == 0]
    return fits if len(fits) > 1 else [(1, 33, 256), (2, 3, 512)]


def counter(size: int, device: str) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int32, device=device)


@pytest.mark.parametrize(("name", "form"), list(SPLIT), ids=NAMES)
def test_words_equal_those_of_torch(device: str, name: str, form: str) -> None:
    assert can_pack(name, form)
    for items, rows, columns in shapes_of(name):
        raw = model_rows(name, rows=items * rows, columns=columns, seed=columns + rows, device=device)
        raw = raw.view(items, rows, -1)
        each = word_count(FORMATS[form], rows=rows, columns=columns)
        out = torch.full((items * (each + 8),), POISON, dtype=torch.int32, device=device)
        places = torch.arange(items, device=device) * (each + 8)
        bad = counter(1, device)
        pack_items(Items(type_name=name, raw=raw, columns=columns, form=form), out=out, places=places, bad=bad, skip=4)
        for number, one in enumerate(out.view(items, -1)):
            wanted = pack(name, raw[number], columns=columns, form=form).words
            assert torch.equal(one[4:-4], wanted), (items, rows, columns)
            assert (one[:4] == POISON).all()
            assert (one[-4:] == POISON).all()
        assert int(bad) == 0


@pytest.mark.parametrize("name", ["IQ3_S", "Q8_0", "IQ4_NL"])
def test_gate_and_up_rows_take_turns(device: str, name: str) -> None:
    items, ff, columns = 3, 16, 256 if BLOCKS[name].block_weights == 256 else 32
    gate, up = (
        model_rows(name, rows=items * ff, columns=columns, seed=seed, device=device).view(items, ff, -1)
        for seed in (1, 2)
    )
    wanted = [
        pack_gate_up((name, gate[one].contiguous()), (name, up[one].contiguous()), columns=columns)
        for one in range(items)
    ]
    form, each = wanted[0].format, wanted[0].words.numel()
    out = torch.full((2 * each,), POISON, dtype=torch.int32, device=device)
    places = torch.tensor([each, -1, 0], device=device)
    bad = counter(2, device)
    found = Items(type_name=name, raw=gate, beside=up, columns=columns, form=form)
    pack_items(found, out=out, places=places, bad=bad)
    assert torch.equal(out[each:], wanted[0].words)
    assert torch.equal(out[:each], wanted[2].words)
    assert bad.tolist() == [0, 0]


def test_fused_rows_are_taken_by_their_strides(device: str) -> None:
    items, ff, columns = 2, 16, 64
    both = model_rows("Q8_0", rows=2 * items * ff, columns=columns, seed=3, device=device).view(items, 2, ff, -1)
    gate, up = both[:, 0], both[:, 1]
    wanted = [pack_gate_up(("Q8_0", gate[one]), ("Q8_0", up[one]), columns=columns).words for one in range(items)]
    out = torch.full((items * wanted[0].numel(),), POISON, dtype=torch.int32, device=device)
    places = torch.arange(items, device=device) * wanted[0].numel()
    found = Items(type_name="Q8_0", raw=gate, beside=up, columns=columns, form="q8")
    pack_items(found, out=out, places=places, bad=counter(2, device))
    assert torch.equal(out, torch.cat(wanted))


@pytest.mark.parametrize("name", ["Q8_0", "IQ4_NL"])
@pytest.mark.parametrize("ff", [16, 130], ids=["one strip", "past a tile"])
def test_one_matrix_or_a_pair_is_packed_as_by_torch(device: str, name: str, ff: int) -> None:
    """Halves of stored rows too, which lie with gaps."""
    rows = [model_rows(name, rows=ff, columns=128, seed=seed, device=device) for seed in (1, 2)]
    wanted, found = pack(name, rows[0], columns=128), pack_quickly(name, rows[0], columns=128)
    assert torch.equal(found.words, wanted.words)
    assert (found.format, found.rows, found.columns) == (wanted.format, ff, 128)
    half = rows[0][:, : rows[0].shape[1] // 2]
    assert torch.equal(pack_quickly(name, half, columns=64).words, pack(name, half.contiguous(), columns=64).words)
    both = pack_gate_up((name, rows[0]), (name, rows[1]), columns=128)
    pair = pack_quickly(name, rows[0], columns=128, beside=rows[1])
    assert torch.equal(pair.words, both.words)
    assert (pair.format, pair.rows, pair.columns) == (both.format, both.rows, both.columns)


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K", "Q2_K", "IQ1_M"])
def test_scales_that_are_no_numbers_are_counted(device: str, name: str) -> None:
    rows, columns = 9, 256
    raw = model_rows(name, rows=rows, columns=columns, seed=5, device=device).clone()
    blocks = raw.view(-1, BLOCKS[name].block_bytes)
    for block, at in ((0, 0), (7, -1), (blocks.shape[0] - 1, 0)):
        if name == "IQ1_M":
            blocks[block, 55] |= 0x70
            blocks[block, 53] |= 0xC0
        else:
            blocks[block, BLOCKS[name].scale_offsets[at] + 1] = 0x7E if block else 0xFC
    wanted = int(nonfinite(raw, name, columns=columns))
    assert wanted > 0
    form = next(form for type_name, form in SPLIT if type_name == name)
    out = torch.empty(word_count(FORMATS[form], rows=rows, columns=columns), dtype=torch.int32, device=device)
    bad = counter(1, device)
    found = Items(type_name=name, raw=raw.view(1, rows, -1), columns=columns, form=form)
    pack_items(found, out=out, places=torch.zeros(1, dtype=torch.int64, device=device), bad=bad)
    assert int(bad) == wanted


@pytest.mark.parametrize("refused", ["type", "gaps", "counters"])
def test_what_does_not_fit_is_refused(device: str, refused: str) -> None:
    raw = model_rows("Q8_0", rows=8, columns=64, seed=1, device=device).view(2, 4, -1)
    out = torch.empty(4096, dtype=torch.int32, device=device)
    places = torch.zeros(2, dtype=torch.int64, device=device)
    items = Items(
        type_name="F32" if refused == "type" else "Q8_0",
        raw=raw[:, ::2] if refused == "gaps" else raw,
        columns=64,
        form="full" if refused == "type" else "q8",
    )
    with pytest.raises(ValueError, match="pack_items"):
        pack_items(items, out=out, places=places, bad=counter(2 if refused == "counters" else 1, device))
