"""Owns finding an appliance that runs already, so that no measurement disturbs it."""

from __future__ import annotations

import http.client
import json

EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
ANSWER_S = 1.0


def find_running(host: str, port: int, *, deadline_s: float = ANSWER_S) -> str | None:
    """The stage of the appliance that answers at the address; None when none does.

    Another program there is not an appliance: only ours tells stage and percent on /ready.
    """
    connection = http.client.HTTPConnection(EVERY_ADDRESS.get(host, host), port, timeout=deadline_s)
    try:
        connection.request("GET", "/ready")
        found = json.loads(connection.getresponse().read(4096))
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    if not isinstance(found, dict) or not {"ready", "stage", "percent"} <= found.keys():
        return None
    return str(found["stage"])
