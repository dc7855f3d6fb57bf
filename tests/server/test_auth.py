"""Keys: the file, and which routes need one (SEC-05)."""

from __future__ import annotations

import json
import logging
import stat

import pytest
from litestar.testing import TestClient

from appliance.errors import RigError, UsageError
from appliance.server import auth
from appliance.server.app import create_app
from appliance.server.backend import ServerConfig
from appliance.server.gate import OPEN_PATHS
from appliance.server.routes import ROUTES
from tests.builders.fake_engine import FakeEngine, say
from tests.builders.live_server import FakeBackend

WRONG_KEYS = {
    "no key": None,
    "wrong key": b"Bearer sk-strata-wrong",
    "empty bearer": b"Bearer ",
    "bare word": b"Bearer",
    "basic": b"Basic sk-strata-wrong",
    "non-ascii": "Bearer schlüssel".encode("latin-1"),
    "utf-8": "Bearer ключ".encode(),
}
TRICKS = [
    "/v1/status/",
    "//v1/status",
    "/v1//status",
    "/v1/%73tatus",
    "/health/../v1/status",
    "/schema",
    "/schema/openapi.json",
    "/docs",
    "/openapi.json",
    "/nothing",
    "/v1",
    "/",
]


@pytest.fixture
def keyed(tmp_path):
    path = tmp_path / "keys.json"
    key = auth.add_key(path, "anna")
    app = create_app(FakeBackend(FakeEngine(say([5]))), ServerConfig(keys_file=path))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client, key, path


def paths():
    return sorted({path.replace("{name:path}", "strata-tiny") for route in ROUTES for path in route.paths})


def methods_of(path):
    wanted = path.replace("strata-tiny", "{name:path}") if path.startswith("/v1/models/") else path
    return sorted(
        {method for route in ROUTES if wanted in route.paths for method in route.http_methods} | {"HEAD", "OPTIONS"}
    )


@pytest.mark.parametrize("header", WRONG_KEYS.values(), ids=WRONG_KEYS.keys())
@pytest.mark.parametrize("path", paths())
def test_sec_05_every_route_of_the_table_needs_a_key_except_health_and_ready(keyed, path, header):
    """SEC-05"""
    client, _, _ = keyed
    for method in methods_of(path):
        headers = {} if header is None else {"Authorization": header}
        answer = client.request(method, path, headers=headers)
        if path in OPEN_PATHS:
            assert answer.status_code in (200, 204, 405), (method, path)
        else:
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                assert answer.json()["error"]["code"] in ("invalid_api_key", "missing_api_key")


@pytest.mark.parametrize("path", TRICKS)
def test_sec_05_path_tricks_and_unknown_routes_are_denied_first(keyed, path):
    """SEC-05"""
    client, key, _ = keyed
    assert client.get(path).status_code == 401
    assert client.get(path, headers={"Authorization": f"Bearer {key}"}).status_code in (200, 404)


def test_open_paths_are_health_and_ready_only():
    assert {"/health", "/ready"} == OPEN_PATHS


def test_open_routes_tell_stage_and_percent_only(keyed):
    client, _, _ = keyed
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"ready": True, "stage": "ready", "percent": 100, "device": "cpu"}


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_case_insensitive(keyed, scheme):
    client, key, _ = keyed
    assert client.get("/v1/models", headers={"Authorization": f"{scheme} {key}"}).status_code == 200
    assert client.get("/v1/models", headers={"Authorization": f"{scheme} {key} "}).status_code == 200


def test_sec_05_the_key_is_never_logged_or_shown(keyed, caplog):
    """SEC-05"""
    client, key, path = keyed
    with caplog.at_level(logging.DEBUG):
        good = client.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
        bad = client.get("/v1/models", headers={"Authorization": "Bearer sk-strata-MARKER"})
    shown = caplog.text + good.text + bad.text + path.read_text()
    assert key not in shown
    assert "MARKER" not in shown
    assert "client=anna" in caplog.text


def test_removed_key_is_refused_by_the_running_server(keyed):
    client, key, path = keyed
    second = auth.add_key(path, "ben")
    assert client.get("/v1/models", headers={"Authorization": f"Bearer {second}"}).status_code == 200
    auth.remove_key(path, "anna")
    assert client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 401
    path.unlink()
    assert client.get("/v1/models", headers={"Authorization": f"Bearer {second}"}).status_code == 401


def test_file_holds_hashes_and_is_private(tmp_path):
    path = tmp_path / "deep" / "keys.json"
    keys = [auth.add_key(path, name) for name in ("anna", "ben")]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [key.name for key in auth.list_keys(path)] == ["anna", "ben"]
    assert not any(key in path.read_text() for key in keys)
    assert len(set(keys)) == 2
    assert all(len(key) > 40 for key in keys)
    assert [entry.name for entry in path.parent.iterdir()] == ["keys.json"]
    ring = auth.KeyRing(path)
    assert ring.verify(keys[1].encode()) == "ben"
    assert ring.verify(b"") is None


@pytest.mark.parametrize("name", ["", "a b", "a/b", "-a", "ü", "x" * 65, "a\n"])
def test_bad_names_are_refused(tmp_path, name):
    with pytest.raises(UsageError, match="not allowed"):
        auth.add_key(tmp_path / "keys.json", name)


def test_names_are_taken_once_and_removed_once(tmp_path):
    path = tmp_path / "keys.json"
    auth.add_key(path, "anna")
    with pytest.raises(UsageError, match="already"):
        auth.add_key(path, "anna")
    with pytest.raises(UsageError, match="it has: anna"):
        auth.remove_key(path, "ben")


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'{"keys": [{"name": 1}]}', b"\xff", json.dumps({"kyes": []}).encode()]
)
def test_broken_file_stops_the_start(tmp_path, content):
    path = tmp_path / "keys.json"
    path.write_bytes(content)
    with pytest.raises(RigError, match="keys file"):
        create_app(FakeBackend(FakeEngine(say([5]))), ServerConfig(keys_file=path))


def test_absent_file_stops_the_start(tmp_path):
    with pytest.raises(RigError, match="does not exist"):
        auth.KeyRing(tmp_path / "keys.json")


GOOD = {"name": "anna", "sha256": "0" * 64, "created": 1}
DAMAGED = {
    "hash not ascii": {"keys": [GOOD | {"sha256": "é" * 64}]},
    "hash cut short": {"keys": [GOOD | {"sha256": "0" * 63}]},
    "the key itself": {"keys": [GOOD | {"sha256": "sk-strata-secret"}]},
    "line break in a name": {"keys": [GOOD | {"name": "anna\nlevel=error"}]},
    "line break behind a name": {"keys": [GOOD | {"name": "anna\n"}]},
    "year 3000000": {"keys": [GOOD | {"created": 10**14}]},
    "before the epoch": {"keys": [GOOD | {"created": -(10**14)}]},
    "newer version": {"keys": [GOOD], "version": 2},
}


@pytest.mark.parametrize("contents", DAMAGED.values(), ids=DAMAGED.keys())
def test_sec_05_a_damaged_keys_file_is_refused_before_it_is_used(contents, tmp_path):
    """SEC-05: at the start, by `strata keys list`, and not as a 500 for every request."""
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [GOOD]}))
    assert auth.list_keys(path)
    path.write_text(json.dumps(contents))
    with pytest.raises(RigError, match="is not a keys file"):
        auth.list_keys(path)
    with pytest.raises(RigError, match="is not a keys file"):
        auth.KeyRing(path)
