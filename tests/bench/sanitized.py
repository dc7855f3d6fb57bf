"""A prompt chunk and a few windows of a small model, launch by launch: what tests/bench/sanitizer.sh checks."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import torch

from appliance.gguf.reader import open_set
from appliance.model.interface import Ask
from appliance.model.qwen4exp.device.model import DeviceModel, load_device_model
from appliance.model.qwen4exp.spec import ModelSpec, read_spec
from appliance.model.window import Span, Window
from tests.device.decoding import decode
from tests.device.models import ORACLE, ROOT, open_slot, plan_of

PROMPTS = ((1, 5, 9, 3), (3, 9, 5, 1))
BUILTIN = "builtin"
BUILTIN_MODEL = ROOT / "appliance" / "data" / "strata-tiny.gguf"


def main() -> None:
    """Reads a chunk and two prompts, decodes with and without drafts; once with half of the experts in RAM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--case", default="base4", help=f"folder of tests/oracle, or {BUILTIN}: the built-in model")
    parser.add_argument("--homes", choices=("both", "card", "half"), default="both", help="where the experts are")
    parser.add_argument("--chunk", type=int, default=40, metavar="ROWS", help="of the prompt chunk; 0: none")
    asked = parser.parse_args()
    path = BUILTIN_MODEL if asked.case == BUILTIN else ORACLE / asked.case / "model.gguf"
    models = models_of(path, homes=asked.homes, chunk_rows=asked.chunk)
    for model in models:
        if asked.chunk:
            read_chunk(model, asked.chunk)
        for window in itertools.islice(decode(model, PROMPTS, draft_max=3), asked.windows):
            window(model.step)
    torch.cuda.synchronize()
    print(f"{asked.windows} windows of {len(models)} models of {asked.case}, chunks of {asked.chunk} rows")


def models_of(path: Path, *, homes: str, chunk_rows: int) -> list[DeviceModel]:
    """The model with all experts on the card and keys as int8, with half of them there and keys as bf16, or both."""
    spec = read_spec(open_set(path))
    whole = _loaded(spec, kv_type="int8", chunk_rows=chunk_rows)
    if homes == "card":
        return [whole]
    store = whole.parts.stages[0].store
    assert store is not None
    half = _loaded(spec, kv_type="bf16", chunk_rows=chunk_rows, expert_pool_bytes=store.pool.nbytes // 2)
    return [half] if homes == "half" else [whole, half]


def _loaded(spec: ModelSpec, **plan: object) -> DeviceModel:
    return load_device_model(spec, plan_of(slots=2, exact=False, **plan), lambda sentence, percent: None)


def read_chunk(model: DeviceModel, rows: int) -> None:
    """Reads a whole prompt as one chunk, and draws after it."""
    open_slot(model, 0)
    tokens = tuple(7 * place % 251 for place in range(rows))
    model.step(Window((Span(slot=0, start=0, tokens=tokens, logits_from=rows - 1),)), [Ask(draft_max=3)])


if __name__ == "__main__":
    main()
