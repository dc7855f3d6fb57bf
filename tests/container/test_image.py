"""The image by itself: other users, a read-only root, memory limits, no cards, bad rigs, the compiler for Triton."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import docker
import pytest

from appliance.errors import ExitCode
from tests.container.stack import ROOT, container, finish, get, image, stop, wait_ready

GIB = 2**30
ANOTHER_USER: dict[str, Any] = {"user": "12345:12345", "read_only": True, "tmpfs": {"/tmp": ""}}
COMPILE = (Path(__file__).parent / "compile_kernel.py").read_text()


def test_ctr_07_another_user_on_a_read_only_root_serves() -> None:
    with container(**ANOTHER_USER) as running:
        port = wait_ready(running)
        assert get(port, "/v1/models")[0] == 200
        assert stop(running)[0] == 0


@pytest.mark.parametrize(
    ("options", "moved"),
    [
        ({}, False),
        (ANOTHER_USER, False),
        ({**ANOTHER_USER, "tmpfs": {"/tmp": "exec", "/cache": "ro"}}, True),
    ],
    ids=["runtime-user", "another-user", "unwritable-cache"],
)
def test_ctr_06_ctr_07_a_kernel_runs_compiles_and_its_launcher_is_built(options: dict[str, Any], moved: bool) -> None:
    code, said = finish(["python", "-c", COMPILE], environment={"TRITON_INTERPRET": "0"}, **options)
    assert code == 0, said
    result = json.loads(said.strip().splitlines()[-1])
    assert result["launcher"] == 42
    assert result["cubin_bytes"] > 1000
    assert result["interpreted"] == [2.0, 4.0, 6.0]
    assert ("compiled again at every start" in said) is moved


def test_mem_01_the_plan_sees_the_memory_limit() -> None:
    code, said = finish(["strata", "probe", "--json"], mem_limit=3 * GIB)
    assert code == 0, said
    limits = [value for value in _numbers(json.loads(said)) if value == 3 * GIB]
    assert limits, f"no {3 * GIB} in {said}"


def test_mem_01_the_plan_stays_within_the_memory_limit() -> None:
    plan = "strata-setup --auto --rig /config/rig.toml >&2 && strata plan --json"
    code, said = finish(["sh", "-c", plan], mem_limit=GIB, stderr=False)
    assert code == 0, said
    placement = json.loads(said)
    assert 0 < placement["total_bytes"] <= placement["budget_bytes"] < GIB


def test_mem_01_a_limit_that_is_too_small_is_refused_before_loading() -> None:
    code, said = finish(mem_limit=400 * 2**20)
    assert code == ExitCode.DOES_NOT_FIT, said
    assert "this process may use" in said
    assert "memory.limit_in_bytes" in said or "memory.max" in said


def _numbers(value: object) -> list[float]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in _numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [value] if isinstance(value, int | float) else []


@pytest.mark.parametrize(
    ("environment", "expected", "says"),
    [
        ({"STRATA_CARDS__DEVICES": "[0]"}, ExitCode.RIG, "cards.devices: found [0]"),
        ({"STRATA_MODEL__PATH": "/models/model.gguf"}, ExitCode.MACHINE, "card"),
        ({"STRATA_SERVER__OPEN": "false", "STRATA_SERVER__HOST": "0.0.0.0"}, ExitCode.RIG, "keys"),
        ({"STRATA_SERVER__HOST": "192.0.2.1", "STRATA_SERVER__OPEN": "true"}, ExitCode.ADDRESS, "192.0.2.1"),
        ({"STRATA_SERVER__PORT": "70000"}, ExitCode.RIG, "port"),
        ({"STRATA_SERVER__PRT": "8081"}, ExitCode.RIG, "STRATA_SERVER__PORT"),
        ({"STRATA_RIG": "/config/none.toml"}, ExitCode.RIG, "/config/none.toml"),
        ({"STRATA_RIG": "/config"}, ExitCode.RIG, "directory"),
    ],
    ids=[
        "ctr-03-cards",
        "ctr-03-model",
        "ctr-11-open",
        "cfg-13-address",
        "cfg-13-port",
        "cfg-03-name",
        "cfg-05-absent",
        "cfg-05-directory",
    ],
)
def test_what_cannot_be_served_is_refused_with_its_exit_code(
    environment: dict[str, str], expected: ExitCode, says: str
) -> None:
    models = {str(ROOT / "tests/oracle/base4"): {"bind": "/models", "mode": "ro"}}
    code, said = finish(environment=environment, volumes=models)
    assert code == expected, said
    assert says in said
    assert "Traceback" not in said


def test_cfg_14_the_wizard_without_a_terminal_says_what_to_do() -> None:
    code, said = finish(["strata-setup"])
    assert code == ExitCode.USAGE, said
    assert "--auto" in said
    assert "\x1b" not in said


def test_the_headless_wizard_writes_a_rig_that_check_accepts() -> None:
    code, said = finish(["sh", "-c", "strata-setup --auto --rig /config/rig.toml && strata check"])
    assert code == 0, said


def test_the_image_carries_notices_and_no_test_tools() -> None:
    script = (
        "import importlib.metadata as m, importlib.util as u, pathlib, appliance;"
        "d = pathlib.Path(appliance.__file__).parent / 'data';"
        "assert (d / 'strata-tiny.gguf').stat().st_size > 1_000_000;"
        "assert 'WordNet' in (d / 'LICENSE-WORDNET.txt').read_text();"
        "assert not [n for n in ('pytest', 'mypy', 'openai', 'ruff', 'hypothesis') if u.find_spec(n)];"
        "print(sorted(p.name for p in m.files('strata-appliance') if 'licenses' in p.parts))"
    )
    code, said = finish(["python", "-c", script])
    assert code == 0, said
    assert "LICENSE" in said
    assert "NOTICE" in said


def test_a_rig_from_outside_is_read_with_its_windows_line_ends() -> None:
    text = '\ufeffschema = 1\r\n[server]\r\nhost = "0.0.0.0"\r\nport = 8080\r\nopen = true\r\n'  # CFG-07
    client = docker.from_env()
    made = client.containers.create(image(), ["strata", "check"])
    try:
        made.put_archive("/config", _archive("rig.toml", text.encode()))
        made.start()
        assert made.wait(timeout=60)["StatusCode"] == 0, made.logs().decode()
    finally:
        made.remove(force=True, v=True)


def _archive(name: str, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        entry.mode = 0o644
        archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
