"""The checks before a route sees a request: keys, Host, Origin and bodies."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from slotdeck.engine.server.keys import KeyRing, load_api_keys
from slotdeck.engine.server.listeners import ListenError, open_listeners, reachable_host
from slotdeck.engine.server.security import HostRule
from slotdeck.engine.settings import SettingsError, StartSettings
from tests.support.stub_server import RunningServer, running

KEY = {"Authorization": "Bearer s3cret"}
BODY = json.dumps({"messages": [{"role": "user", "content": "say: hello"}]})


@pytest.fixture(scope="module")
def locked(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with keys and an additional host name."""
    keys = ["laptop=s3cret", "phone=other"]
    with running(
        tokenizer, tmp_path_factory.mktemp("locked"), api_key=keys, allowed_host=["nas.local"], max_body=20_000
    ) as server:
        yield server


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    "path",
    ["/v1/models", "//v1/models", "/V1/models", "/v1/models/", "/v1/chat/completions", "/metrics", "/slots", "/", "/x",
     "/health/", "/HEALTH", "//health", "/health/../metrics", "/docs", "/openapi.json", "/admin/frame"],
)  # fmt: skip
def test_sec_04_every_route_asks_for_a_key(locked: RunningServer, method: str, path: str) -> None:
    connection = httpx.Client(base_url=locked.url)
    request = connection.build_request(method, locked.url + path)
    request.url = request.url.copy_with(raw_path=path.encode())
    response = connection.send(request)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    if method != "HEAD":
        assert response.json()["error"]["code"] == "invalid_api_key"


def test_sec_04_health_alone_is_public(locked: RunningServer) -> None:
    assert locked.client.get("/health").json() == {"status": "ok"}
    assert locked.client.head("/health").status_code == 200
    assert locked.client.post("/health").status_code == 401


@pytest.mark.parametrize("value", ["Bearer wrong", "Bearer", "", "s3cret", "Basic s3cret", "Bearer s3cret x"])
def test_wrong_keys(locked: RunningServer, value: str) -> None:
    assert locked.client.get("/v1/models", headers={"Authorization": value}).status_code == 401


def test_keys_name_the_user(locked: RunningServer) -> None:
    locked.runner.gate.clear()
    connection = socket.create_connection(("127.0.0.1", locked.port))
    connection.sendall(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nauthorization: bearer other\r\n"
        f"Content-Length: {len(BODY)}\r\n\r\n{BODY}".encode()
    )
    frame = locked.until(lambda frame: frame.running == 1)
    assert frame.slots[0].user == "phone"
    locked.runner.gate.set()
    locked.idle()
    connection.close()


def test_sec_05_slots_tell_nothing_about_people(locked: RunningServer) -> None:
    locked.runner.gate.clear()
    connection = locked.raw_chat("forever", max_tokens=2)
    connection.close()
    answer = httpx.Client(base_url=locked.url, headers=KEY)
    pending = socket.create_connection(("127.0.0.1", locked.port))
    pending.sendall(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer other\r\n"
        f"Content-Length: {len(BODY)}\r\n\r\n{BODY}".encode()
    )
    locked.until(lambda frame: frame.running == 1)
    page = answer.get("/slots").json()
    assert [slot["slot"] for slot in page] == [0, 1, 2, 3]
    assert page[0]["state"] == "prefill"
    assert not {"user", "request_id"} & page[0].keys()
    locked.runner.gate.set()
    locked.idle()
    pending.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("LOCALHOST:8000", 200), ("127.0.0.1", 200), ("127.0.0.2:1", 200), ("[::1]:80", 200),
        ("nas.local", 200), ("NAS.local.:8000", 200),
        ("evil.example", 421), ("evil.example:8000", 421), ("localhost.evil.example", 421), ("192.168.1.7", 421),
        ("127.0.0.1.evil.example", 421), ("localhost@evil.example", 421), ("", 421),
    ],
)  # fmt: skip
def test_sec_02_host(locked: RunningServer, host: str, status: int) -> None:
    response = locked.client.get("/v1/models", headers=KEY | {"Host": host})
    assert response.status_code == status
    if status != 200:
        assert "--allowed-host" in response.json()["error"]["message"]


def test_sec_02_on_an_open_bind_the_address_of_the_connection_is_allowed() -> None:
    rule = HostRule("0.0.0.0", ["nas.local:8000"])
    assert rule.allows("192.168.1.7", "192.168.1.7")
    assert not rule.allows("192.168.1.8", "192.168.1.7")
    assert rule.allows("nas.local", "192.168.1.7")
    assert not rule.allows("evil.example", "192.168.1.7")
    assert rule.allows("192.168.1.5", "::ffff:192.168.1.5")  # as written by a socket for both address families
    assert not rule.allows("192.168.1.6", "::ffff:192.168.1.5")
    assert not HostRule("::", []).allows("", None)


def test_the_curl_command_of_the_readme_needs_no_content_type(server: RunningServer) -> None:
    """curl -d sends application/x-www-form-urlencoded. Without an Origin, no web page can have sent it."""
    body = '{"temperature":0,"max_tokens":64,\n       "messages":[{"role":"user","content":"say: hello"}]}'
    headers = {"content-type": "application/x-www-form-urlencoded"}
    answer = server.client.post("/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200), ("http://127.0.0.1", 200), ("https://nas.local", 200), ("http://[::1]:5", 200),
        ("http://evil.example", 403), ("null", 403), ("", 403), ("file://", 403), ("http://nas.local.evil", 403),
        ("http://localhost:3000@evil.example", 403), ("http://[::1", 403),
    ],
)  # fmt: skip
def test_origin(locked: RunningServer, origin: str, status: int) -> None:
    headers = KEY | {"Origin": origin, "Content-Type": "application/json"}
    assert locked.client.post("/v1/chat/completions", content=BODY, headers=headers).status_code == status


def test_a_page_must_send_json_as_json(locked: RunningServer) -> None:
    headers = KEY | {"Origin": "http://localhost:3000", "Content-Type": "text/plain"}
    assert locked.client.post("/v1/chat/completions", content=BODY, headers=headers).status_code == 415
    del headers["Origin"]
    assert locked.client.post("/v1/chat/completions", content=BODY, headers=headers).status_code == 200


def test_sec_09_bodies_are_limited(locked: RunningServer) -> None:
    response = locked.client.post("/v1/chat/completions", content=b" " * 20_001, headers=KEY)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"
    chunked = locked.client.post("/v1/chat/completions", content=(b" " * 1000 for _ in range(30)), headers=KEY)
    assert chunked.status_code == 413
    assert locked.client.post("/v1/chat/completions", content=BODY.ljust(20_000), headers=KEY).status_code == 200


def test_sec_09_413_comes_before_the_body_does(locked: RunningServer) -> None:
    connection = socket.create_connection(("127.0.0.1", locked.port))
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer s3cret\r\n"
        b"Content-Length: 2000000000\r\n\r\nx"
    )
    assert connection.recv(64).startswith(b"HTTP/1.1 413")
    connection.close()
    endless = socket.create_connection(("127.0.0.1", locked.port))
    endless.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer s3cret\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n5dc0\r\n" + b" " * 0x5DC0 + b"\r\n"
    )
    assert endless.recv(64).startswith(b"HTTP/1.1 413")
    endless.close()


def test_sec_09_compressed_bodies(locked: RunningServer) -> None:
    headers = KEY | {"Content-Encoding": "gzip"}
    response = locked.client.post("/v1/chat/completions", content=gzip.compress(BODY.encode()), headers=headers)
    assert response.status_code == 415


def test_sec_07_headers_are_limited(locked: RunningServer) -> None:
    assert locked.client.get("/health", headers={"x-big": "x" * 40_000}).status_code == 431
    for headers in ({"x-big": "x" * 2_000_000}, {f"x-{number}": "y" * 100 for number in range(5000)}):
        try:
            assert locked.client.get("/health", headers=headers).status_code in (400, 431)
        except httpx.TransportError:
            pass  # the server closed while the client still wrote
    assert locked.client.get("/health").status_code == 200


def test_errors_have_one_shape(server: RunningServer) -> None:
    client = server.client
    unknown = client.get("/v1/nothing")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["code"] == "unknown_url"
    wrong = client.get("/v1/chat/completions")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert wrong.json()["error"]["code"] == "method_not_allowed"
    options = client.options("/v1/chat/completions")
    assert (options.status_code, options.headers["allow"], options.content) == (204, "POST", b"")
    for path in ("/health", "/metrics", "/slots", "/v1/models"):
        head = client.head(path)
        assert (head.status_code, head.content) == (200, b"")


def test_without_keys_the_address_names_the_user(server: RunningServer) -> None:
    server.runner.gate.clear()
    connection = server.raw_chat("say: hello")
    assert server.until(lambda frame: frame.running == 1).slots[0].user == "127.0.0.1"
    server.runner.gate.set()
    server.idle()
    connection.close()


def test_guest_keys_name_simulated_users(server: RunningServer) -> None:
    first = server.admin.post("/admin/guest-keys", json={"labels": ["laptop", "phone"]}).json()["keys"]
    second = server.admin.post("/admin/guest-keys", json={"labels": ["phone"]}).json()["keys"]
    assert first["phone"] != second["phone"]
    server.runner.gate.clear()
    sockets = []
    for key in (first["laptop"], second["phone"], first["phone"]):
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Length: {len(BODY)}\r\n\r\n{BODY}".encode()
        )
        sockets.append(connection)
    frame = server.until(lambda frame: (frame.running or 0) + (frame.waiting_count or 0) == 3)
    users = {slot.user for slot in frame.slots if slot.user} | {entry.user for entry in frame.waiting}
    assert users == {"laptop", "phone", "127.0.0.1"}
    server.runner.gate.set()
    server.idle()
    for connection in sockets:
        connection.close()


@pytest.mark.parametrize("labels", [None, [], "x", [""], ["x" * 65], [5], ["a\nb"], ["x"] * 257])
def test_guest_labels_are_checked(server: RunningServer, labels: object) -> None:
    response = server.admin.post("/admin/guest-keys", json={"labels": labels})
    assert response.status_code == 422
    assert response.json()["error"]["param"] == "labels"


def test_sec_01_an_open_bind_needs_keys(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", ""):
        with pytest.raises(SettingsError, match="--api-key"):
            open_listeners(StartSettings(host=host, port=0, socket=tmp_path / "s"))
    with open_listeners(StartSettings(host="0.0.0.0", port=0, socket=tmp_path / "s", api_key=["a=b"])) as listeners:
        assert "0.0.0.0" not in listeners.url  # no client could use that
        assert reachable_host("0.0.0.0") in listeners.url


def test_key_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# people\nlaptop = one=1 \n\nphone=two\n")
    settings = StartSettings(api_key=["desk=three"], api_key_file=path)
    assert load_api_keys(settings) == {"desk": "three", "laptop": "one=1", "phone": "two"}
    for line, fault in (("nokey", "line 1"), ("desk=x", "twice"), ("other=three", "another label")):
        path.write_text(line)
        with pytest.raises(SettingsError, match=fault) as caught:
            load_api_keys(settings)
        assert "three" not in str(caught.value)
    with pytest.raises(SettingsError, match="cannot be read"):
        load_api_keys(StartSettings(api_key_file=tmp_path / "missing"))


def test_too_many_guests_are_refused() -> None:
    ring = KeyRing({})
    ring.mint(map(str, range(1024)))
    with pytest.raises(ValueError, match="at most"):
        ring.mint(["one more"])


def test_a_host_of_another_machine_is_refused(tmp_path: Path) -> None:
    for host in ("192.0.2.1", "no such host"):
        with pytest.raises(ListenError):
            open_listeners(StartSettings(host=host, port=0, socket=tmp_path / "s", api_key=["a=b"]))
