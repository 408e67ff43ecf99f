"""What a stranger can send over the wire: broken bodies, wrong routes, keys, hosts. Raw bytes, no client library."""

import json
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from support.fake_model import fake_engine
from support.server import MODEL, Reply, RunningServer, read_reply, running_server
from tuili.config.options import ServerOptions
from tuili.errors import ModelNotFound
from tuili.server.service import Service

KEY = "sk-test-0123456789abcdef"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(fake_engine(), max_body_bytes=1_000_000) as server:
        yield server


def assert_error(reply: Reply, status: int) -> dict[str, Any]:
    """OpenAI's error shape, no traceback in it."""
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/json"
    error = reply.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str)
    assert "Traceback" not in reply.body.decode() and ".py" not in reply.body.decode()
    return error


def assert_alive(server: RunningServer) -> None:
    assert server.request("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 1}).status == 200


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **fields}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1, x}',
        b"",
        b"[]",
        b"null",
        b'"s"',
        b'{"a":',
        b'{"prompt":"\xff\xfe"}',
        '{"prompt":"a"}'.encode("utf-16"),
        b"[" * 200 + b"]" * 200,
        b"[" * 100_000,
        b'{"prompt":"\\ud800"}',
        b'{"temperature":1e999,"prompt":"x"}',
        b'{"temperature":NaN,"prompt":"x"}',
        b"5",
    ],
    ids=lambda body: repr(body[:16]),
)
def test_broken_bodies(server: RunningServer, path: str, body: bytes) -> None:
    """[D-OPS-1] 400 in the JSON error shape, and the server lives on."""
    assert_error(server.request("POST", path, body), 400)
    assert_alive(server)


def test_duplicate_keys_and_a_byte_order_mark(server: RunningServer) -> None:
    """[D-OPS-1] the last of two equal keys counts; a byte order mark is skipped."""
    reply = server.request("POST", "/v1/completions", b'\xef\xbb\xbf{"prompt":"hi","max_tokens":5,"max_tokens":1}')
    assert reply.json["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    ("media_type", "status"),
    [
        ("text/plain", 415),
        ("application/json; charset=latin-1", 415),
        ("", 415),
        ("application/json; charset=UTF-8", 200),
        ("application/merge-patch+json", 200),
    ],
)
def test_media_types(server: RunningServer, media_type: str, status: int) -> None:
    """[D-OPS-1]"""
    reply = server.request("POST", "/v1/chat/completions", chat(), {"Content-Type": media_type})
    if status == 200:
        assert reply.status == 200
    else:
        assert "application/json" in assert_error(reply, status)["message"]


def test_curls_default_media_type_but_not_a_browsers(server: RunningServer) -> None:
    """[D-OPS-1] accepted as documented: JSON called a form. Pages of other sites may send that unasked: not with an Origin."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert server.request("POST", "/v1/chat/completions", chat(), form).status == 200
    assert_error(server.request("POST", "/v1/chat/completions", chat(), {**form, "Origin": "https://evil.example"}), 415)


def test_a_body_that_says_it_is_too_large(server: RunningServer) -> None:
    """[D-OPS-1] 413 before any of it is sent, so that a client that asks first (Expect) need not send it."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000000\r\nExpect: 100-continue\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(head)
        first = connection.recv(65536)
    assert first.startswith(b"HTTP/1.1 413 ")


def test_a_chunked_body_without_end(server: RunningServer) -> None:
    """[D-OPS-1] 413 as soon as the limit is passed, memory flat, while the client is still sending 64 MB."""
    before = resident_bytes()
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    with server.connect() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(64):
            connection.sendall(chunk)
        connection.sendall(b"0\r\n\r\n")
        reply = connection.recv(65536)
        assert reply.startswith(b"HTTP/1.1 413 ") and b"1000000 bytes" in reply
        # The connection is still in step: the next request on it is answered.
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert read_reply(connection).status == 200
    assert resident_bytes() - before < 32_000_000


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_body_shorter_than_its_length(server: RunningServer) -> None:
    """[D-OPS-1] the client gives up in the middle of its body: nothing is left behind."""
    with server.connect() as connection:
        connection.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"prompt":')
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
    assert_alive(server)


def test_a_body_that_never_comes(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuili.server.body.BODY_TIMEOUT", 0.2)
    with server.connect() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nConnection: close\r\n\r\n{")
        assert_error(read_reply(connection), 408)


def test_a_name_without_its_tag() -> None:
    """There is one model, so its name is enough, as on the command line; another tag is another model."""
    service = Service("smollm2:135m", ServerOptions())
    for name in (None, "smollm2", "smollm2:135m"):
        service.check_model(name)
    for name in ("", "smollm", "smollm2:", "smollm2:1.7b", "135m"):
        with pytest.raises(ModelNotFound, match="this server has 'smollm2:135m'"):
            service.check_model(name)


def test_unknown_model(server: RunningServer) -> None:
    """[D-OPS-1]"""
    error = assert_error(server.request("POST", "/v1/chat/completions", chat(model="gpt-4")), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "gpt-4" in error["message"] and MODEL in error["message"]
    assert_error(server.request("GET", "/v1/models/gpt-4"), 404)


def test_unknown_fields_are_said_to_be_ignored(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    """[D-OPS-1] accepted, named in a reply header and in the log."""
    with caplog.at_level(logging.WARNING):
        reply = server.request("POST", "/v1/chat/completions", chat(temperatur=0.5, **{"x\r\nSet-Cookie: a": 1, "键": 2}))
    assert reply.status == 200
    said = reply.headers["x-tuili-warning"]
    assert "temperatur (did you mean temperature?)" in said and "set-cookie" not in reply.headers
    assert "temperatur" in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("POST", "/v1/chat/completion", 404, "/v1/chat/completions"),
        ("GET", "/nothing/like/it", 404, "openapi.json"),
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("POST", "/v1/models", 405, "GET"),
        ("OPTIONS", "/v1/chat/completions", 405, "POST"),
        ("GET", "/v1/chat/completions/", 404, "/v1/chat/completions"),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", 404, "there is no"),
    ],
)
def test_wrong_routes(server: RunningServer, method: str, path: str, status: int, said: str) -> None:
    reply = server.request(method, path)
    assert said in assert_error(reply, status)["message"]
    assert not any(name.startswith("access-control") for name in reply.headers)


def test_an_unexpected_failure_shows_nothing_of_itself(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("secret words of /some/file.py")

    monkeypatch.setattr("tuili.server.routes.openai.parse_body", fail)
    error = assert_error(server.request("POST", "/v1/completions", {"prompt": "x"}, {"X-Request-Id": "abc"}), 500)
    assert "secret" not in error["message"] and "abc" in error["message"]
    monkeypatch.undo()
    assert_alive(server)


def test_request_ids(server: RunningServer) -> None:
    assert server.request("GET", "/v1/models", headers={"X-Request-Id": "my-id-1"}).headers["x-request-id"] == "my-id-1"
    for hostile in ("a b", "x" * 200, "a\tb", ""):
        made = server.request("GET", "/v1/models", headers={"X-Request-Id": hostile}).headers["x-request-id"]
        assert made != hostile and len(made) == 32
    assert len(server.request("POST", "/v1/completions", b"{").headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8000", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:80", 403),
        ("192.168.0.1", 403),
    ],
)
def test_without_keys_only_this_machine_is_answered(server: RunningServer, host: str, status: int) -> None:
    """A web page whose domain is pointed at 127.0.0.1 gets nothing."""
    reply = server.request("GET", "/v1/models", headers={"Host": host})
    if status == 403:
        assert "--api-key" in assert_error(reply, 403)["message"]
    assert reply.status == status


def test_ops_routes(server: RunningServer) -> None:
    assert server.request("GET", "/health").json == {"status": "ok"}
    assert server.request("HEAD", "/health").status == 200
    assert server.request("GET", "/ready").json == {"status": "ready", "model": MODEL}
    assert set(server.request("GET", "/version").json) == {"version"}
    assert server.metrics()["tuili_num_requests_running"] == 0


def test_openapi_describes_the_bodies(server: RunningServer) -> None:
    document = server.request("GET", "/openapi.json").json
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schemas = document["components"]["schemas"]
    assert "messages" in schemas[body["$ref"].rpartition("/")[2]]["properties"]
    refs = {part.split('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:]}
    assert refs and refs <= set(schemas)


def test_loading() -> None:
    with running_server(None) as server:
        assert server.request("GET", "/health").status == 200
        ready = server.request("GET", "/ready")
        assert (ready.status, ready.json["status"]) == (503, "loading")
        for reply in (server.request("POST", "/v1/chat/completions", chat()), server.request("GET", "/v1/models")):
            assert "loading" in assert_error(reply, 503)["message"]
            assert int(reply.headers["retry-after"]) >= 1
        assert server.request("GET", "/metrics").status == 200


@pytest.fixture(scope="module")
def keyed() -> Iterator[RunningServer]:
    with running_server(fake_engine(), api_keys=("other-key", KEY, "schlüssel")) as server:
        yield server


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": f"Bearer {KEY}"}, 200),
        ({"Authorization": f"bearer {KEY}"}, 200),
        ({"Authorization": "Bearer other-key"}, 200),
        ({"Authorization": f"Bearer {KEY}x"}, 401),
        ({"Authorization": f"Bearer {KEY[:-1]}"}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
        ({"Authorization": KEY}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Bearer sk-wrong-abcdefabcdef"}, 401),
        ({}, 401),
    ],
)
def test_keys(keyed: RunningServer, headers: dict[str, str], status: int) -> None:
    """[D-SEC-3]"""
    reply = keyed.request("POST", "/v1/chat/completions", chat(), {"Host": "any.example", **headers})
    if status == 401:
        assert_error(reply, 401)
        assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.status == status


def test_keys_guard_all_of_v1_and_nothing_else(keyed: RunningServer) -> None:
    assert keyed.request("GET", "/v1/models").status == 401
    assert keyed.request("GET", "/v1/nothing").status == 401
    assert [keyed.request("GET", path).status for path in ("/health", "/ready", "/metrics", "/version")] == [200] * 4


def test_keys_are_nowhere_to_be_read(keyed: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    """[D-SEC-3] neither the right key nor a wrong one is in a log line, a reply or a metric."""
    wrong = "sk-wrong-fedcba9876543210"
    replies: list[bytes] = []
    with caplog.at_level(logging.DEBUG):
        for key in (KEY, wrong):
            for path in (f"/v1/models?api_key={key}", f"/v1/{key[:8]}?key={key}", f"/metrics?api_key={key}"):
                replies.append(keyed.request("GET", path, headers={"Authorization": f"Bearer {key}"}).body)
            body = chat(api_key=key)
            replies.append(keyed.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {key}"}).body)
            replies.append(keyed.request("GET", "/v1/models", headers={"X-Api-Key": key}).body)
    everything = caplog.text + b"".join(replies).decode()
    for key in (KEY, wrong):
        assert key not in everything and key[9:-4] not in everything
