"""The command line: one clear line and a distinct exit code for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance import __version__, boot
from appliance.__main__ import main
from appliance.engine import kernel_cache
from appliance.errors import ExitCode
from appliance.examine import BUILTIN_MODEL
from tests.ports import free_port

RIG = '[model]\npath = "builtin"\n[server]\nhost = "127.0.0.1"\nport = 8080\n'


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("STRATA_RIG", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


@pytest.fixture
def rig(tmp_path: Path) -> Path:
    path = tmp_path / "rig.toml"
    path.write_text(RIG)
    return path


def test_check_says_what_is_served(rig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--rig", str(rig)]) == ExitCode.OK
    out = capsys.readouterr().out
    assert f"{rig}: ok: " in out
    assert "8 conversations of 4096 tokens" in out
    assert "note: the built-in model runs on the CPU" in out  # CTR-03


@pytest.mark.parametrize(
    ("text", "arguments", "code", "says"),
    [
        pytest.param(RIG + "prot = 1\n", [], ExitCode.RIG, "server.prot", id="CFG-03 unknown key"),
        pytest.param(RIG, ["--set", "server.port=70000"], ExitCode.RIG, "--set server.port", id="CFG-13 port"),
        pytest.param(RIG, ["--set", "server.prot=1"], ExitCode.RIG, "did you mean server.port?", id="unknown flag key"),
        pytest.param(RIG, ["--set", "port"], ExitCode.USAGE, "TABLE.KEY=VALUE", id="flag without value"),
        pytest.param(RIG + 'keys_file = "keys.json"\n', [], ExitCode.RIG, "strata keys add", id="SEC keys file absent"),
        pytest.param('[model]\npath = "x.gguf"\n', [], ExitCode.MACHINE, 'devices = "cpu"', id="CTR-03 no card"),
        pytest.param(
            '[model]\npath = "x.gguf"\n[cards]\ndevices = "cpu"\n',
            [],
            ExitCode.MODEL_FILE,
            "x.gguf",
            id="no such model",
        ),
        pytest.param("[cards]\ndevices = [0]\n", [], ExitCode.RIG, "no card 0", id="CTR-03 card 0"),
        pytest.param("[cards]\nlayer_split = [4, 4]\n", [], ExitCode.RIG, "two cards", id="CFG-01 split"),
        pytest.param("[context]\nmax_tokens = 5000\n", [], ExitCode.RIG, "write 4096", id="context beyond the model"),
    ],
)
def test_check_refuses(
    rig: Path, capsys: pytest.CaptureFixture[str], text: str, arguments: list[str], code: ExitCode, says: str
) -> None:
    rig.write_text(text)
    assert main(["check", "--rig", str(rig), *arguments]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith("strata: ")
    assert says in captured.err
    assert captured.out == ""


def test_what_does_not_fit(rig: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """MEM-01: the plan is refused over the container's limit, before anything is loaded."""
    from appliance import commands
    from tests.builders.machines import machine

    monkeypatch.setattr(commands, "look", lambda loaded: machine(ram_bytes=256 << 20))
    assert main(["check", "--rig", str(rig)]) == ExitCode.DOES_NOT_FIT
    assert "short" in capsys.readouterr().err


def test_check_and_plan_on_a_card_tell_its_memory_apart_from_ram(
    rig: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CTR-03: "auto" takes a card that can be used, and says so."""
    from appliance import commands
    from tests.builders.machines import machine

    monkeypatch.setattr(commands, "look", lambda loaded: machine(cards=1))
    assert main(["check", "--rig", str(rig)]) == ExitCode.OK
    out = capsys.readouterr().out
    assert " on 1 card, " in out
    assert "16 GiB RAM, " in out
    assert "of 31.32 GiB on card 0 (NVIDIA Test 32G, 00000000:01:00.0)" in out
    assert main(["plan", "--rig", str(rig)]) == ExitCode.OK
    names = [line[:18].strip() for line in capsys.readouterr().out.splitlines()]
    last = ["together", "allowed", "card: together", "card: allowed"]
    assert [name for name in names if name in last] == last


def test_check_and_plan_over_several_cards(
    rig: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CFG-10: name and bus id of each stage; its layers, milliseconds and idle share, for people and programs."""
    from appliance import commands
    from tests.builders.machines import machine

    monkeypatch.setattr(commands, "look", lambda loaded: machine(cards=2))
    rig.write_text(RIG + "[cards]\ndevices = [1, 0]\nlayer_split = [5]\n")
    assert main(["check", "--rig", str(rig)]) == ExitCode.OK
    assert "card 1 (NVIDIA Test 32G, 00000000:02:00.0) with layers 0 to 4" in capsys.readouterr().out
    assert main(["plan", "--rig", str(rig)]) == ExitCode.OK
    table = capsys.readouterr().out
    for words in (
        "device     card 1 NVIDIA Test 32G (00000000:02:00.0), card 0 ",
        "  card 1 layers 0-4 ",
    ):
        assert words in table
    assert main(["plan", "--json", "--rig", str(rig)]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert [stage["card"]["index"] for stage in found["stages"]] == [1, 0]
    assert [stage["layers"] for stage in found["stages"]] == [[0, 5], [5, 8]]
    for stage in found["stages"]:
        assert stage["window_s"] > 0
        assert 0 <= stage["idle"] < 1
        assert stage["handoff_s"] > 0
        assert stage["route"] == ("ram" if stage is found["stages"][0] else "")
        assert stage["budget_bytes"] - stage["free_bytes"] == sum(item["size_bytes"] for item in stage["items"])
    assert found["estimate"]["source"] == "estimate from assumed speeds"


def test_plan_as_table_and_json(rig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--rig", str(rig)]) == ExitCode.OK
    table = capsys.readouterr().out
    assert main(["plan", "--json", "--rig", str(rig)]) == ExitCode.OK
    plan = json.loads(capsys.readouterr().out)
    assert plan["total_bytes"] == sum(item["size_bytes"] for item in plan["items"])
    for item in plan["items"]:
        assert item["name"] in table


def test_plan_explains_every_value(
    rig: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_SERVING__QUEUE", "5")
    assert main(["plan", "--explain", "--rig", str(rig), "--set", "serving.parallel=2"]) == ExitCode.OK
    out = capsys.readouterr().out
    for line in (
        "server.port = 8080  # file rig.toml:5",
        "serving.queue = 5  # environment STRATA_SERVING__QUEUE",
        "serving.parallel = 2  # flag --set serving.parallel",
        "engine.plain = false  # default",
    ):
        assert line in out


def test_probe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe"]) == ExitCode.OK
    assert "RAM" in capsys.readouterr().out
    assert main(["probe", "--json"]) == ExitCode.OK
    assert {"cards", "ram", "cores", "storage"} <= json.loads(capsys.readouterr().out).keys()


def test_keys(rig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SEC: the key is printed once, the file holds its hash."""
    assert main(["keys", "list", "--rig", str(rig)]) == ExitCode.RIG
    assert 'keys_file = "keys.json"' in capsys.readouterr().err
    rig.write_text('[server]\nhost = "0.0.0.0"\nkeys_file = "keys.json"\n')
    assert main(["keys", "add", "ann", "--rig", str(rig)]) == ExitCode.OK
    key = capsys.readouterr().out.strip()
    assert key not in (rig.parent / "keys.json").read_text()
    assert main(["check", "--rig", str(rig)]) == ExitCode.OK
    capsys.readouterr()
    assert main(["keys", "list", "--rig", str(rig)]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("ann ")
    assert main(["keys", "add", "ann", "--rig", str(rig)]) == ExitCode.USAGE
    assert main(["keys", "remove", "ann", "--rig", str(rig)]) == ExitCode.OK
    capsys.readouterr()
    assert main(["check", "--rig", str(rig)]) == ExitCode.RIG
    assert "holds no key" in capsys.readouterr().err


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["nonsense"], ["serve", "--prot", "1"], ["plan", "--json", "--explain"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == ExitCode.USAGE
    with pytest.raises(SystemExit):
        main(["--version"])
    assert __version__ in capsys.readouterr().out


def test_a_rig_that_was_named_is_never_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CFG-05"""
    assert main(["serve", "--rig", str(tmp_path / "none.toml")]) == ExitCode.RIG
    assert "no rig here" in capsys.readouterr().err
    assert not (tmp_path / "none.toml").exists()


def test_health_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--url", f"http://127.0.0.1:{free_port()}"]) == ExitCode.ADDRESS
    assert "nothing answers" in capsys.readouterr().err


def test_the_kernel_cache_is_checked_at_every_start() -> None:
    """CTR-07: see also the tests of the cache itself."""
    assert boot.settle is kernel_cache.settle


def test_the_built_in_model_is_package_data() -> None:
    assert BUILTIN_MODEL.is_file()
