"""Owns running the measurements that need torch: a process here, or a container of the appliance's image."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from appliance.rig.problem import first_line
from appliance.rig.rates import CardRates, Rates, Reading

MODULE = "appliance.engine.probe"
# What the engine says without the NVIDIA container toolkit.
NO_RUNTIME = "could not select device driver"
READINGS = ("to_card_gbps", "from_card_gbps", "in_place_gbps", "vram_gbps", "tflops")


def measure_cards(
    uuids: Sequence[str],
    *,
    ram_bytes: int,
    image: str,
    deadline_s: float,
    connect: Callable[[], Any] | None = None,
    has_torch: bool | None = None,
) -> Rates:
    """Speeds of the cards; everything but the cards is left unmeasured.

    Args:
        uuids: cards to measure.
        ram_bytes: free RAM, of which a tenth may be pinned.
        image: where torch is when this Python has none.
        deadline_s: the process is ended after that.
        connect: gives a docker client; tests give their own.
        has_torch: whether this Python has torch; asked when None.
    """
    if not uuids:
        return Rates(cards_reason="there is no card")
    here = importlib.util.find_spec("torch") is not None if has_torch is None else has_torch
    arguments = ["-m", MODULE, "--json", "--ram-bytes", str(ram_bytes), *uuids]
    if here:
        return _in_process([sys.executable, *arguments], deadline_s)
    return _in_container(["python", *arguments], uuids, image, deadline_s, connect)


def _in_process(words: Sequence[str], deadline_s: float) -> Rates:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=deadline_s, check=False)
    except subprocess.TimeoutExpired:
        return Rates(cards_reason=f"the cards were not measured within {deadline_s:g} s")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return Rates(cards_reason=f"the measuring process failed: {lines[-1][:200] if lines else done.returncode}")
    return read_rates(done.stdout)


def _in_container(
    words: Sequence[str], uuids: Sequence[str], image: str, deadline_s: float, connect: Callable[[], Any] | None
) -> Rates:
    try:
        docker = importlib.import_module("docker")
        client = connect() if connect else docker.from_env(timeout=int(deadline_s))
        container = client.containers.create(
            image,
            list(words),
            network_mode="none",
            device_requests=[docker.types.DeviceRequest(device_ids=list(uuids), capabilities=[["gpu"]])],
            ulimits=[docker.types.Ulimit(name="memlock", soft=-1, hard=-1)],
        )
    except ImportError:
        return Rates(cards_reason="torch is not installed here, nor the Python package docker to use the image's")
    except Exception as error:  # the SDK's errors, and those of its transport
        return Rates(cards_reason=f"torch is not installed here, and {image} cannot be used: {first_line(error)}")
    try:
        container.start()
        code = container.wait(timeout=deadline_s)["StatusCode"]
        text = container.logs(stdout=True, stderr=code != 0).decode(errors="replace")
    except Exception as error:
        return Rates(cards_reason=_why(image, error))
    finally:
        container.remove(force=True)  # also one that was made and did not start
    if code != 0:
        return Rates(cards_reason=f"the measuring container ended with {code}: {text.strip()[-200:]}")
    return read_rates(text)


def _why(image: str, error: Exception) -> str:
    if NO_RUNTIME in str(error):
        return f"torch is not installed here, and Docker cannot hand cards to {image} ({NO_RUNTIME}): see strata doctor"
    return f"{image} did not measure the cards: {first_line(error)}"


def read_rates(text: str) -> Rates:
    """What the measuring process printed, checked."""
    try:
        found = json.loads(text.strip().splitlines()[-1])
        cards = tuple(_card(entry) for entry in found["cards"])
        return Rates(cards=cards, cards_reason=str(found["cards_reason"]))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        return Rates(cards_reason=f"the measuring process printed no result ({type(error).__name__})")


def _card(entry: dict[str, Any]) -> CardRates:
    readings = {name: Reading(entry[name]["value"], str(entry[name]["reason"])) for name in READINGS}
    return CardRates(
        uuid=str(entry["uuid"]),
        generation=entry["generation"],
        width=entry["width"],
        peers=tuple(map(str, entry["peers"])),
        peer_note=str(entry["peer_note"]),
        **readings,
    )
