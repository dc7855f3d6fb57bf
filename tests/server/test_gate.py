"""Pages of other sites: CORS (SEC-04), Host and Origin (SEC-06)."""

from __future__ import annotations

import pytest
from litestar.testing import TestClient

from appliance.server import auth
from appliance.server.app import create_app
from appliance.server.backend import ServerConfig
from tests.builders.fake_engine import FakeEngine, say
from tests.builders.live_server import FakeBackend

CHAT = "https://chat.example"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}


def client_of(**config):
    app = create_app(FakeBackend(FakeEngine(say([5]))), ServerConfig(**config))
    return TestClient(app, raise_server_exceptions=False, base_url="http://127.0.0.1:8080")


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys.json"
    auth.add_key(path, "anna")
    return path


@pytest.mark.parametrize(
    ("configured", "origin", "status"),
    [
        pytest.param((CHAT,), CHAT, 204, id="allowed"),
        pytest.param((CHAT,), "https://evil.example", 403, id="other"),
        pytest.param((), CHAT, 403, id="none configured"),
        pytest.param((CHAT,), "null", 403, id="null"),
        pytest.param(("*",), CHAT, 204, id="any"),
    ],
)
def test_sec_04_preflight_needs_no_key_and_is_answered_for_configured_origins_only(keys, configured, origin, status):
    """SEC-04"""
    with client_of(keys_file=keys, cors_origins=configured) as client:
        answer = client.options("/v1/chat/completions", headers={"Origin": origin, **PREFLIGHT})
    assert answer.status_code == status
    assert ("access-control-allow-origin" in answer.headers) == (status == 204)
    assert "access-control-allow-credentials" not in answer.headers
    if status == 204:
        assert answer.headers["access-control-allow-headers"] == "authorization, content-type"
    else:
        assert answer.json()["error"]["code"] == "origin_not_allowed"


def test_sec_04_a_401_can_be_read_by_the_allowed_page(keys):
    """SEC-04"""
    with client_of(keys_file=keys, cors_origins=(CHAT,)) as client:
        wrong = {"Authorization": "Bearer x"}
        answer = client.post("/v1/chat/completions", json={}, headers={"Origin": CHAT, **wrong})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, CHAT)
        other = client.post("/v1/chat/completions", json={}, headers={"Origin": "https://evil.example", **wrong})
        assert other.status_code == 401
        assert "access-control-allow-origin" not in other.headers
        assert answer.headers["vary"] == other.headers["vary"] == "Origin"


def test_sec_04_closed_by_default(keys):
    """SEC-04"""
    with client_of(keys_file=keys) as client:
        answer = client.get("/v1/models", headers={"Origin": CHAT})
    assert not [name for name in answer.headers if name.startswith("access-control")]


HOSTS = {
    "evil.example": 403,
    "evil.example:8080": 403,
    "localhost.evil.example": 403,
    "127.0.0.1.evil.example": 403,
    "": 403,
    "localhost": 200,
    "LOCALHOST:8080": 200,
    "127.0.0.1:8080": 200,
    "192.168.1.20:8080": 200,
    "[::1]:8080": 200,
    "box.office.example": 200,
    "Box.Office.example:80": 200,
}


@pytest.mark.parametrize(("host", "status"), HOSTS.items())
def test_sec_06_host_names_of_others_are_refused_without_keys(host, status):
    """SEC-06"""
    with client_of(allowed_hosts=("box.office.example",)) as client:
        answer = client.get("/v1/models", headers={"Host": host})
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["error"]["code"] == "host_not_allowed"
        assert "server.allowed_hosts" in answer.json()["error"]["message"]


ORIGINS = {
    "https://evil.example": 403,
    "null": 403,
    "http://[": 403,
    "http://localhost:3000": 200,
    "http://192.168.1.20": 200,
    "https://box.office.example": 200,
    CHAT: 200,
}


@pytest.mark.parametrize(("origin", "status"), ORIGINS.items())
def test_sec_06_origins_of_others_are_refused_without_keys(origin, status):
    """SEC-06"""
    with client_of(allowed_hosts=("box.office.example",), cors_origins=(CHAT,)) as client:
        answer = client.get("/v1/models", headers={"Origin": origin})
    assert answer.status_code == status
    if status == 403:
        assert "server.cors_origins" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "kind", ["text/plain", "", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx"]
)
def test_sec_06_other_content_types_are_refused(kind):
    """SEC-06, API-10: a plain cross-site POST cannot declare JSON."""
    with client_of() as client:
        answer = client.post("/v1/chat/completions", content=b'{"messages": []}', headers={"Content-Type": kind})
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "unsupported_media_type"


def test_with_keys_any_host_name_is_answered(keys):
    with client_of(keys_file=keys) as client:
        assert client.get("/v1/models", headers={"Host": "box.office.example"}).status_code == 401
