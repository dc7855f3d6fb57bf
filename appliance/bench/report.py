"""The tables of `strata bench`, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from appliance.bench.clients import PromptTime
from appliance.bench.kernels import KernelTime
from appliance.bench.rig_bench import Line
from appliance.bench.windows import WindowTime

WINDOW_HEAD: Final = (
    "rows seqs drafts   ms/window  on card   tok/s experts     GB   GB/s  limit ms  share of limit   hits"
)
CLIENT_HEAD: Final = (
    "clients drafts    tok/s  x one  ms/window   rows  first ms   GB/win   GB/s  limit ms  share    hits  same text"
    "  accepted by depth"
)


def window_line(line: WindowTime) -> str:
    """A window of a synthetic model."""
    hits = "-" if line.hit_share is None else f"{line.hit_share:.1%}"
    return (
        f"{line.rows:4d} {line.sequences:4d} {line.drafts:6d} {line.milliseconds:11.3f} "
        f"{line.device_milliseconds:8.3f} {line.rows / line.milliseconds * 1e3:7.0f} {line.experts:7.1f} "
        f"{line.gigabytes:6.2f} {line.gigabytes / line.milliseconds * 1e3:6.0f} {line.limit_milliseconds:9.3f} "
        f"{line.share:8.0%} {hits:>13}"
    )


def client_line(line: Line, *, one: float | None) -> str:
    """Clients of a rig's model; `one` is what one client gets."""
    time = line.time
    over = "-" if one is None else f"{time.tokens_per_s / one:.2f}"
    hits = "-" if line.hit_share is None else f"{line.hit_share:.1%}"
    accepted = " ".join(f"{share:.2f}" for share in time.accepted) or "-"
    return (
        f"{time.clients:7d} {time.draft_max:6d} {time.tokens_per_s:8.0f} {over:>6} {1e3 * time.window_s:10.2f} "
        f"{time.rows:6.1f} {1e3 * time.first_token_s:9.0f} {line.gigabytes:8.3f} {line.gigabytes / time.window_s:6.0f} "
        f"{1e3 * line.limit_s:9.3f} {line.limit_s / time.window_s:6.0%} {hits:>7} {time.same:5d} of {time.clients:<2d}"
        f"  {accepted}"
    )


def prompt_line(found: PromptTime) -> str:
    """A prompt that an idle engine read."""
    return (
        f"prompt of {found.tokens:6d} tokens: {found.tokens_per_s:8.0f} tok/s, first token {found.first_token_s:.3f} s"
    )


def kernel_lines(found: Sequence[KernelTime]) -> Iterator[str]:
    """Which kernels the time went to."""
    total = sum(one.microseconds for one in found) / max(sum(one.share for one in found), 1e-9)
    yield f"kernels: {total:.0f} us a window"
    yield f"{'':<52}launches  us a window   share"
    for one in found:
        yield f"  {one.name[:48]:<50}{one.launches:8.1f} {one.microseconds:12.1f} {one.share:7.1%}"
