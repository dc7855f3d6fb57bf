"""The terminal after a signal and after a fault of ours."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from setup_wizard.__main__ import answers

HAND = "# ours\n[server]\nport = 9090 # the proxy\n"

DRIVER = """
import dataclasses, sys
from pathlib import Path
import setup_wizard.app as app
from setup_wizard.__main__ import screens
from setup_wizard.sources import real_sources
def probe(folder):
    if sys.argv[2] == "fault":
        raise RuntimeError("the probe broke")
    import time; time.sleep(60)
app.real_sources = lambda: dataclasses.replace(real_sources(), probe=probe)
sys.exit(screens(Path(sys.argv[1]), reset=False))
"""


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        pytest.param("SIGTERM", 143, b"ended by SIGTERM", id="CFG-16 SIGTERM during a probe"),
        pytest.param("SIGINT", 130, b"ended by SIGINT", id="CFG-16 SIGINT during a probe"),
        pytest.param("fault", 70, b"the probe broke", id="CFG-16 a fault in a probe's thread"),
    ],
)
def test_the_terminal_is_sane_afterwards(tmp_path: Path, how: str, code: int, words: bytes) -> None:
    """CFG-16: screen, mouse and cursor are given back before anything is printed; the rig is untouched."""
    rig = tmp_path / "rig.toml"
    rig.write_text(HAND)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(rig), how],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
    )
    os.close(theirs)
    said, sent = b"", how == "fault"
    try:
        while select.select([ours], [], [], 20)[0]:
            try:
                block = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            said += block
            if not sent and b"looking at" in said:
                os.kill(process.pid, getattr(signal, how))
                sent = True
        assert process.wait(20) == code, said[-800:]
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    left = said.rindex(b"\x1b[?1049l")
    assert words in said[left:]
    assert b"\x1b[?25h" in said
    assert said.rindex(b"\x1b[?1000l") > said.rindex(b"\x1b[?1000h")
    assert b"was not touched" in said[left:]
    assert rig.read_text() == HAND


@pytest.mark.parametrize(
    ("reply", "expected"),
    [pytest.param(b"\x1b[1;1R", True, id="a terminal"), pytest.param(b"", False, id="CFG-14 -t without -i")],
)
def test_a_terminal_that_nobody_is_at_is_found_out(reply: bytes, expected: bool) -> None:
    """CFG-14"""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, reply)
        assert answers(theirs, theirs, deadline_s=0.2) is expected
        said = b""  # what the terminal echoes may come in a piece of its own
        while b"\x1b[6n" not in said and select.select([ours], [], [], 5.0)[0]:
            said += os.read(ours, 64)
        assert b"\x1b[6n" in said
    finally:
        os.close(ours)
        os.close(theirs)
