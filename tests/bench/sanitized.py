"""A few windows of a tiny model, launch by launch: what tests/bench/sanitizer.sh runs under compute-sanitizer."""

from __future__ import annotations

import argparse
import itertools

import torch

from tests.device.decoding import decode
from tests.device.models import load

PROMPTS = ((1, 5, 9, 3), (3, 9, 5, 1))


def main() -> None:
    """Reads two prompts, decodes with and without drafts, with half of the experts in the host's memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--case", default="base4", help="folder of tests/oracle")
    asked = parser.parse_args()
    whole = load(asked.case, exact=False, kv_type="int8")
    store = whole.parts.stages[0].store
    assert store is not None
    part = load(asked.case, exact=False, kv_type="bf16", expert_pool_bytes=store.pool.nbytes // 2)
    for model in (whole, part):
        for window in itertools.islice(decode(model, PROMPTS, draft_max=3), asked.windows):
            window(model.step)
    torch.cuda.synchronize()
    print(f"{2 * asked.windows} windows of {asked.case}")


if __name__ == "__main__":
    main()
