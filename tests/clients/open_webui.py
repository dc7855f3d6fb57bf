"""Drives Open WebUI, unmodified and offline, against this appliance: `python -m tests.clients.open_webui`.

Installs it into a folder of its own, starts the appliance with a named key and Open WebUI with the appliance as its
only connection, lists the model, streams a chat, makes a title, then chats and stops an answer in a real browser
(Debian's chromium) and takes a picture of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.ports import free_port

PERSON = {"name": "Anna", "email": "anna@office.example", "password": "a-long-passphrase-1"}
START_S = 400
BROWSER = Path(__file__).parent / "open_webui_browser.py"


def install(folder: Path) -> Path:
    """Open WebUI and the browser's driver in an environment of their own; returns its Python."""
    python = folder / "venv" / "bin" / "python"
    if not (python.parent / "open-webui").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "open-webui", "playwright"], check=True)
    return python


@contextmanager
def running(command: list[str], environment: dict[str, str], *, log: Path, url: str) -> Iterator[None]:
    """A process that answers 200 at the address; its end is asked for and awaited."""
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            wait(lambda: process.poll() is not None or _answers(url), f"{url} to answer", within_s=START_S)
            assert process.poll() is None, log.read_text()[-3000:]
            yield
        finally:
            process.terminate()
            process.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def wait(condition: Callable[[], bool], what: str, *, within_s: float) -> None:
    """Polls; raises AssertionError when it takes too long."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"waited {within_s} s for {what}"
        time.sleep(0.2)


@contextmanager
def appliance(folder: Path) -> Iterator[tuple[str, str]]:
    """The appliance with one named key; yields its address and the key."""
    port = free_port()
    rig = folder / "rig.toml"
    (folder / "keys.json").unlink(missing_ok=True)
    server = f'[server]\nhost = "127.0.0.1"\nport = {port}\nkeys_file = "keys.json"\n'
    rig.write_text(f'schema = 1\n[cards]\ndevices = "cpu"\n{server}')
    strata = [sys.executable, "-m", "appliance"]
    added = subprocess.run(
        [*strata, "keys", "add", "open-webui", "--rig", str(rig)], capture_output=True, text=True, check=True
    )
    key = next(word for word in added.stdout.split() if word.startswith("sk-"))
    url = f"http://127.0.0.1:{port}"
    command = [*strata, "serve", "--rig", str(rig)]
    with running(command, dict(os.environ), log=folder / "appliance.log", url=f"{url}/ready"):
        yield url, key


@contextmanager
def open_webui(folder: Path, python: Path, url: str, key: str) -> Iterator[str]:
    """Open WebUI with an empty database; yields its address."""
    port = free_port()
    shutil.rmtree(folder / "data", ignore_errors=True)
    environment = {
        **os.environ,
        "DATA_DIR": str(folder / "data"),
        "OFFLINE_MODE": "true",
        "HF_HUB_OFFLINE": "1",
        "WEBUI_SECRET_KEY": "only-for-this-run",
        "ENABLE_OLLAMA_API": "false",
        "OPENAI_API_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": key,
        # Its own tools would take 8,700 tokens of every prompt, twice the built-in model's context; it reads text only.
        "DEFAULT_MODEL_METADATA": '{"capabilities": {"builtin_tools": false, "vision": false}}',
        "ENABLE_FOLLOW_UP_GENERATION": "false",
        "ENABLE_TAGS_GENERATION": "false",
        "RAG_EMBEDDING_ENGINE": "openai",
        "BYPASS_EMBEDDING_AND_RETRIEVAL": "true",
        "ENABLE_VERSION_UPDATE_CHECK": "false",
        "ANONYMIZED_TELEMETRY": "false",
        "DO_NOT_TRACK": "true",
        "SCARF_NO_ANALYTICS": "true",
    }
    command = [str(python.parent / "open-webui"), "serve", "--host", "127.0.0.1", "--port", str(port)]
    here = f"http://127.0.0.1:{port}"
    with running(command, environment, log=folder / "open-webui.log", url=f"{here}/health"):
        yield here


def drive(client: httpx.Client) -> str:
    """Signs up, lists the model, streams a chat, makes a title; returns the session's token."""
    token = str(client.post("/api/v1/auths/signup", json=PERSON).raise_for_status().json()["token"])
    client.headers["Authorization"] = f"Bearer {token}"
    models = [model["id"] for model in client.get("/api/models").raise_for_status().json()["data"]]
    assert models, "Open WebUI lists no model"
    done("lists the model", ", ".join(models))
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    body = {"model": models[0], "messages": messages, "stream": True}
    text, pieces = "", 0
    with client.stream("POST", "/api/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:]).get("choices", ()):
                    text += choice["delta"].get("content") or ""
                    pieces += 1
    assert "Paris" in text, text
    assert pieces > 2
    done("streams a chat", f"{text!r} in {pieces} pieces")
    asked = {"model": models[0], "chat_id": "none", "messages": [*messages, {"role": "assistant", "content": text}]}
    title = client.post("/api/v1/tasks/title/completions", json=asked).raise_for_status().json()
    content = title["choices"][0]["message"]["content"]
    assert content
    done("makes a title", repr(content)[:90])
    return token


def busy(url: str, key: str) -> int:
    """Slots that are taken on the appliance."""
    status: dict[str, Any] = httpx.get(f"{url}/v1/status", headers={"Authorization": f"Bearer {key}"}).json()
    return sum(slot["state"] != "free" for slot in status["slots"])


def done(what: str, detail: str = "") -> None:
    print(f"ok  {what:<24} {detail}", flush=True)


def main() -> int:
    """Runs everything once."""
    options = argparse.ArgumentParser(description=__doc__)
    cache = Path.home() / ".cache" / "strata-open-webui"
    options.add_argument("--folder", type=Path, default=cache, help="kept between runs")
    options.add_argument("--chromium", default=shutil.which("chromium") or "chromium")
    options.add_argument("--picture", type=Path, default=Path("docs/open-webui.png"))
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    python = install(given.folder)
    with appliance(given.folder) as (url, key), open_webui(given.folder, python, url, key) as here:
        with httpx.Client(base_url=here, timeout=300) as client:
            token = drive(client)
        picture = [str(python), str(BROWSER), here, token, given.chromium, str(given.picture)]
        browser = subprocess.Popen(picture, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert browser.stdout is not None
        for line in browser.stdout:
            word = line.strip()
            if word == "writing":
                wait(lambda: busy(url, key) > 0, "the answer to begin", within_s=60)
                assert browser.stdin is not None
                browser.stdin.write("go on\n")
                browser.stdin.flush()
            elif word == "stopped":
                wait(lambda: busy(url, key) == 0, "the slot to be free", within_s=2)
            done(word)
        assert browser.wait() == 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
