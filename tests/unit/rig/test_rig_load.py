"""The rig from file, environment and flags: everything wrong is said at once, with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.errors import ExitCode, RigError
from appliance.rig import migrate
from appliance.rig.load import load_rig, load_text
from appliance.rig.problem import RigProblems
from appliance.rig.size import GIB, MIB


def refusal(text: str, **sources: object) -> str:
    with pytest.raises(RigProblems) as caught:
        load_text(text, **sources)  # type: ignore[arg-type]
    assert caught.value.exit_code is ExitCode.RIG
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(
            '[server]\napi_kye = "secret"\nhost = "0.0.0.0"\n',
            ["rig.toml:2: server.api_kye: no such key", "did you mean keys_file?"],
            id="CFG-03 typo in a security key",
        ),
        pytest.param("[gpu]\n", ["rig.toml:1: gpu: no such table", "did you mean cards?"], id="CFG-06 wrong header"),
        pytest.param("[severs]\n", ["severs: no such table", "did you mean server?"], id="CFG-06 misspelt header"),
        pytest.param(
            "port = 1\n[server]\n", ["rig.toml:1: port: this key stands above", "[server]"], id="CFG-06 above header"
        ),
        pytest.param(
            "[server]\nport = 1\n\n[server]\nopen = true\n",
            ["rig.toml:4: not TOML", "('server',) twice"],
            id="CFG-06 table twice",
        ),
        pytest.param(
            "[server]\n\n\n\n\n\nport = = 1\n", ["rig.toml:7: not TOML", "column 8"], id="CFG-06 syntax on line 7"
        ),
        pytest.param('[server]\nhost = "x', ["rig.toml:2: not TOML"], id="CFG-06 open text"),
        pytest.param("[server]\nport = 1\nport = 2\n", ["rig.toml:3: not TOML"], id="CFG-06 key twice"),
        pytest.param(
            "[server]\nparallel = 4\n", ["rig.toml:2: server.parallel: no such key here", "[serving]"], id="other table"
        ),
        pytest.param("[server]\nport = 70000\n", ["found 70000", "1 to 65535"], id="CFG-13 port too high"),
        pytest.param(
            '[server]\nport = "8080"\n',
            ['found "8080"', "1 to 65535", "without quotes: 8080"],
            id="CFG-13 port is text",
        ),
        pytest.param('[server]\nopen = "true"\n', ['found "true"', "(without quotes: true)"], id="boolean is text"),
        pytest.param(
            '[serving]\nparallel = "8"\n', ['"auto", or 1 to 64 (without quotes: 8)'], id="number or auto is text"
        ),
        pytest.param(
            '[serving]\nparallel = "many"\n', ['found "many"; allowed: "auto", or 1 to 64'], id="word for number"
        ),
        pytest.param("[server]\nport = 0\n", ["found 0", "1 to 65535"], id="port 0"),
        pytest.param("[server]\nport = 80.0\n", ["found 80.0", "1 to 65535"], id="float for integer"),
        pytest.param("[server]\nport = true\n", ["found true", "1 to 65535"], id="boolean for number"),
        pytest.param("[serving]\nbatch_mtp = 1\n", ["found 1", "true or false"], id="number for boolean"),
        pytest.param("[sampling]\ntop_p = nan\n", ["found nan", "to 1.0"], id="NaN"),
        pytest.param("[sampling]\ntemperature = inf\n", ["found inf"], id="infinity"),
        pytest.param("[context]\nmax_tokens = null\n", ["rig.toml:2: not TOML"], id="null"),
        pytest.param("[cards]\nvram_reserve = 700\n", ["found 700", "which unit?"], id="bare size"),
        pytest.param('[cards]\nvram_reserve = "700"\n', ["which unit?"], id="bare size as text"),
        pytest.param('[cards]\nvram_reserve = "7 GiBs"\n', ["which unit?", "GiB"], id="unknown unit"),
        pytest.param('[cards]\nlayer_split = ["24"]\n', ['found ["24"]', "strictly rising"], id="CFG-02 text in split"),
        pytest.param(
            "[cards]\nlayer_split = [24.5]\n", ["found [24.5]", "47 of a 48-layer"], id="CFG-02 float in split"
        ),
        pytest.param("[cards]\nlayer_split = true\n", ["found true", "one fewer than"], id="CFG-02 boolean split"),
        pytest.param("[cards]\nlayer_split = []\n", ["found []", "one fewer than"], id="CFG-02 empty split"),
        pytest.param("[cards]\ndevices = [0, 0]\n", ["names something twice"], id="card twice"),
        pytest.param('[server]\ncors_origins = ["*"]\n', ["never *"], id="SEC-04 any origin"),
        pytest.param('[server]\nhost = "0.0.0.0"\n', ["rig.toml:2", "no API keys", "open = true"], id="SEC open host"),
        pytest.param('[server]\nhost = "::"\n', ["no API keys"], id="SEC open host, IPv6"),
        pytest.param('[server]\nhost = "[::1]"\n', ["without brackets"], id="brackets"),
        pytest.param("schema = 2\n[server]\n", ["rig.toml:1: schema: found 2", "newer"], id="newer schema"),
        pytest.param("schema = 0\n", ["schema: found 0"], id="schema that never was"),
        pytest.param("server = 4\n", ["server: found 4", "[server] table"], id="key for table"),
        pytest.param("[[machine.card]]\nname = 4\n", ["rig.toml:2: machine.card.name: found 4"], id="card of machine"),
    ],
)
def test_refused_with_its_place(text: str, says: list[str]) -> None:
    message = refusal(text)
    for part in says:
        assert part in message


def test_all_problems_at_once_and_in_one_line_each() -> None:
    text = "[server]\nport = 0\n[cards]\nvram_reserve = 7\n[nonsense]\n"
    lines = refusal(text, environment={"STRATA_PORT": "1"}, flags=[("--set a.b", "a.b", "1")]).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        "rig.toml:2",
        "rig.toml:4",
        "rig.toml:5",
        "environment STRATA_PORT",
        "--set a.b",
    ]


def test_the_value_of_an_unknown_key_is_not_repeated() -> None:
    """SEC-08, CFG-03: a misspelt key may hold a secret."""
    assert "hunter2" not in refusal('[server]\napi_kye = "hunter2"\n')


def test_boundaries_are_accepted() -> None:
    rig = load_text(
        '[server]\nport = 65535\n[cards]\nvram_reserve = ["1 GiB", "700 MiB"]\n[serving]\ndraft_max = 0\n'
    ).rig
    assert rig.server.port == 65535
    assert rig.cards.vram_reserve == (GIB, 700 * MIB)
    assert load_text("[serving]\ndraft_min_p = 1\n").rig.serving.draft_min_p == 1.0


def test_later_source_wins_and_each_value_knows_its_own() -> None:
    loaded = load_text(
        "[server]\nport = 1\nopen = true\n[serving]\nqueue = 9\n",
        environment={"STRATA_SERVER__PORT": "2", "STRATA_SERVING__QUEUE": "3", "STRATA_MODEL__NAME": "12", "HOME": "/"},
        flags=[("--port", "server.port", "4")],
    )
    assert (loaded.rig.server.port, loaded.rig.serving.queue, loaded.rig.model.name) == (4, 3, "12")
    origins = {key: (loaded.origin(key).kind, loaded.origin(key).where) for key in ("server.port", "server.open")}
    assert origins == {"server.port": ("flag", "--port"), "server.open": ("file", "rig.toml:3")}
    assert loaded.origin("serving.queue").where == "STRATA_SERVING__QUEUE"
    assert loaded.origin("server.host").kind == "default"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        pytest.param("STRATA_SERVER__PROT", "STRATA_SERVER__PORT", id="misspelt"),
        pytest.param("STRATA_PORT", "STRATA_SERVER__PORT", id="table left out"),
        pytest.param("STRATA_SERVER_PORT", "STRATA_SERVER__PORT", id="one underscore"),
        pytest.param("STRATA_RIGG", "STRATA_RIG", id="the path"),
        pytest.param("strata_server__port", "STRATA_SERVER__PORT", id="small letters"),
    ],
)
def test_other_environment_names_are_refused(name: str, meant: str) -> None:
    assert f"did you mean {meant}?" in refusal("", environment={name: "1"})


def test_environment_values_have_their_own_type() -> None:
    loaded = load_text(
        None,
        environment={
            "STRATA_SERVER__CORS_ORIGINS": '["https://a.example"]',
            "STRATA_CARDS__DEVICES": "cpu",
            "STRATA_CARDS__VRAM_RESERVE": "1 GiB",
            "STRATA_SERVING__BATCH_MTP": "false",
        },
    )
    assert loaded.rig.server.cors_origins == ("https://a.example",)
    assert loaded.rig.cards.devices == "cpu"
    assert loaded.rig.cards.vram_reserve == GIB
    assert loaded.rig.serving.batch_mtp is False
    assert 'STRATA_SERVER__PORT: server.port: found "x"' in refusal("", environment={"STRATA_SERVER__PORT": "x"})


def test_windows_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    """CFG-07"""
    path = tmp_path / "rig.toml"
    path.write_bytes(b"\xef\xbb\xbf[server]\r\nport = 8081\r\n")
    assert load_rig(path, environment={}).rig.server.port == 8081


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param("[server]\n".encode("utf-16"), "save as UTF-8", id="CFG-07 UTF-16"),
        pytest.param("[server]\n".encode("utf-16-le"), "save as UTF-8", id="CFG-07 UTF-16 without mark"),
        pytest.param(b"[server]\n# caf\xe9\n", "rig.toml:2: byte 14 is not UTF-8", id="CFG-07 Latin-1"),
        pytest.param(b"", "the file is empty", id="CFG-05 empty"),
        pytest.param(b"\n \n", "the file is empty", id="CFG-05 blank"),
    ],
)
def test_unreadable_text(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "rig.toml"
    path.write_bytes(data)
    with pytest.raises(RigError) as caught:
        load_rig(path, environment={})
    assert says in str(caught.value)


def test_absent_directory_and_unreadable_have_their_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CFG-05"""
    file = tmp_path / "file"
    file.write_text("x")
    words = []
    for path in (tmp_path / "none.toml", tmp_path, file / "rig.toml"):
        with pytest.raises(RigError) as caught:
            load_rig(path, environment={})
        words.append(str(caught.value))
    monkeypatch.setattr(Path, "read_bytes", lambda self: (_ for _ in ()).throw(PermissionError(13, "no")))
    with pytest.raises(RigError) as caught:
        load_rig(file, environment={})
    words.append(str(caught.value))
    for part, word in zip(
        ("strata-setup --auto --rig", "is a directory", "is a file", "may not read"), words, strict=True
    ):
        assert part in word


def test_older_schema_is_migrated_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(migrate.MIGRATIONS, 0, lambda tree: tree.update(server=tree.pop("listen")))
    loaded = load_text("schema = 0\n[listen]\nport = 8085\n")
    assert (loaded.rig.server.port, loaded.migrated_from) == (8085, 0)


def test_relative_paths_start_at_the_rig(tmp_path: Path) -> None:
    path = tmp_path / "rig.toml"
    path.write_text('[server]\nkeys_file = "keys.json"\n')
    loaded = load_rig(path, environment={})
    assert loaded.resolve("keys.json") == tmp_path / "keys.json"
    assert loaded.resolve("/etc/keys.json") == Path("/etc/keys.json")


LONG = "9" * 5000
UNREADABLE = [
    ("long number", f"schema = {LONG}\n", "a number is too long"),
    ("deep list", "a = " + "[" * 5000, "nested too deep"),
    ("deep closed list", "a = " + "[" * 100 + "]" * 100, "nested too deep"),
    ("deep table", "[" + ".".join("a" * 3000) + "]\n", "nested too deep"),
]


@pytest.mark.parametrize(("text", "says"), [row[1:] for row in UNREADABLE], ids=[row[0] for row in UNREADABLE])
def test_cfg_06_what_python_cannot_hold_is_a_sentence(text, says):
    """CFG-06: no stack trace, whatever stands there."""
    assert f"not TOML: {says}" in refusal(text)


SOURCES = [
    ("long number", LONG, "found "),
    ("deep", "[" * 5000, "found "),
    ("second key", "8081\nopen = true", "found "),
    ("second table", "8081\n[server]\nopen = true", "found "),
    ("not UTF-8", "\udcff", "the value is not UTF-8"),
]


@pytest.mark.parametrize(("value", "says"), [row[1:] for row in SOURCES], ids=[row[0] for row in SOURCES])
def test_cfg_06_a_value_from_outside_is_one_value(value, says):
    """CFG-06: nothing that stands behind it is dropped in silence."""
    assert f"--set server.port: server.port: {says}" in refusal("", flags=[("--set server.port", "server.port", value)])
    assert says in refusal("", environment={"STRATA_SERVER__PORT": value})


def test_a_name_that_is_not_utf_8_never_reaches_the_api():
    assert "the value is not UTF-8" in refusal("", environment={"STRATA_MODEL__ALIASES": '["\udcff"]'})


NAMES = [
    ("allowed_hosts", name, False) for name in ("*", "*.lan", "a:80", "http://a", "a/b", "a.b.", "é", "[::1]", "a b")
] + [("allowed_hosts", name, True) for name in ("a", "strata.office.lan", "my_box", "10.0.0.7", "::1", "xn--9ca.de")]
NAMES += [
    ("cors_origins", f"https://{name}", False)
    for name in ("*.a", "a?b", "u:p@a", "[::1", "a:99999", "é", "a#b", "a:", "a:080")
]
NAMES += [("cors_origins", f"https://{name}", True) for name in ("a", "A.b", "a:8443", "[::1]:3000", "10.0.0.7")]


@pytest.mark.parametrize(("key", "name", "fits"), NAMES, ids=[f"{key} {name}" for key, name, _ in NAMES])
def test_sec_06_a_name_that_matches_nobody_is_refused(key, name, fits):
    """SEC-06: accepted, it would let nobody in, and the 403 would name a setting that is there already."""
    text = f'[server]\n{key} = ["{name}"]\n'
    if fits:
        assert getattr(load_text(text).rig.server, key) == (name,)
    else:
        assert f'rig.toml:2: server.{key}: "{name}" matches no client' in refusal(text)
