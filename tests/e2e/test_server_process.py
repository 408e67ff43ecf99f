"""The server as a process: ports, loading, signals, exit codes."""

import json
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from support.server import Reply, ServerProcess, read_reply, server_process, wait_until
from tuili.config.options import ServerOptions
from tuili.errors import ConfigError
from tuili.server.bind import open_sockets, shown_url

MODULE = "support.serve_fake"


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with server_process(MODULE) as server:
        server.wait_until_ready()
        yield server


class Stream:
    """A stream that is read in a thread to its end."""

    def __init__(self, server: ServerProcess, num_tokens: int) -> None:
        body = json.dumps({"prompt": "x", "max_tokens": num_tokens, "ignore_eos": True, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        self.connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        self.connection.sendall(head.encode() + body)
        self.first = self.connection.recv(1)
        self.reply: Reply | None = None
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        with self.connection:
            raw = self.first
            try:
                while data := self.connection.recv(65536):
                    raw += data
            except ConnectionError:
                pass
        self.reply = Reply(raw)

    def end(self) -> Reply:
        self.thread.join(60)
        assert self.reply is not None
        return self.reply


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_a_signal_lets_answers_finish(server: ServerProcess) -> None:
    """[D-OPS-2] running and queued streams end properly, new requests get 503, ready turns 503, health stays 200; code 0."""
    port = server.port
    streams = [Stream(server, 100) for _ in range(2)]
    queued = [threading.Thread(target=lambda: streams.append(Stream(server, 5))) for _ in range(5)]
    for thread in queued:
        thread.start()
    time.sleep(0.3)
    server.signal(signal.SIGTERM)
    server.wait_for_log("SIGTERM")
    assert server.get("/ready") == 503 and server.get("/health") == 200 and server.get("/v1/models") == 503
    for thread in queued:
        thread.join(30)
    assert len(streams) == 7
    for stream in streams:
        events = stream.end().events
        assert events[-1] == "[DONE]" and events[-2]["choices"][0]["finish_reason"] == "length"
    assert server.wait() == 0
    assert is_free(port)


def test_a_second_signal_ends_at_once(server: ServerProcess) -> None:
    """[D-OPS-2]"""
    stream = Stream(server, 1500)
    server.signal(signal.SIGTERM)
    server.wait_for_log("SIGTERM")
    started = time.monotonic()
    server.signal(signal.SIGINT)
    assert server.wait() == 0
    assert time.monotonic() - started < 5
    assert b"[DONE]" not in stream.end().body


def test_the_drain_time_is_kept() -> None:
    """[D-OPS-2] what has not finished by then is told so, and never looks complete."""
    with server_process(MODULE, "--drain-timeout", "0.5") as server:
        server.wait_until_ready()
        stream = Stream(server, 1500)
        server.signal(signal.SIGTERM)
        assert server.wait(10) == 0
        last = stream.end().events[-1]
        assert "shutting down" in last["error"]["message"]


def test_a_signal_while_loading() -> None:
    """[D-OPS-2]"""
    with server_process(MODULE, "--load-seconds", "60") as server:
        wait_until(lambda: server.get("/health") == 200, "listening")
        assert server.get("/ready") == 503 and server.get("/v1/models") == 503
        server.signal(signal.SIGTERM)
        assert server.wait(10) == 0


def test_a_load_that_fails_is_one_line() -> None:
    """[D-OPS-2]"""
    with server_process(MODULE, "--fail") as server:
        assert server.wait() == 1
        assert "Traceback" not in server.log
        assert [line for line in server.lines if "damaged" in line] == [server.lines[-1]]


def test_a_taken_port_names_its_owner() -> None:
    """[D-OPS-2] in one line, before anything is loaded, without the owner's options: one of them is a key."""
    with server_process(MODULE, "--api-key", "sk-secret-of-the-owner") as owner:
        owner.wait_until_ready()
        with server_process(MODULE, "--port", str(owner.port), "--load-seconds", "60") as server:
            assert server.wait() == 1
            (line,) = server.lines
            assert f"port {owner.port}" in line and f"{MODULE} (process {owner.process.pid})" in line and "--port" in line
            assert "sk-secret" not in server.log
        assert owner.get("/health") == 200


def test_an_address_that_cannot_be_is_one_line() -> None:
    with server_process(MODULE, "--host", "0.0.0.0") as server:
        assert server.wait() == 1
        (line,) = server.lines
        assert "--api-key" in line


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ServerOptions("0.0.0.0", 0), "--api-key"),
        (ServerOptions("::", 0), "--api-key"),
        (ServerOptions("no-such-host.invalid", 0), "does not resolve"),
        (ServerOptions("203.0.113.7", 0, ("k",)), "not an address of this machine"),
        (ServerOptions("127.0.0.1", 99999), "99999"),
    ],
)
def test_addresses_that_cannot_be(options: ServerOptions, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        open_sockets(options)


@pytest.mark.parametrize(
    ("options", "url"),
    [
        (ServerOptions("localhost", 0), "http://localhost:"),
        (ServerOptions("::1", 0), "http://[::1]:"),
        (ServerOptions("0.0.0.0", 0, ("k",)), "http://0.0.0.0:"),
        (ServerOptions("::", 0, ("k",)), "http://[::]:"),
    ],
)
def test_addresses_that_can_be(options: ServerOptions, url: str) -> None:
    sockets = open_sockets(options)
    ports = {listener.getsockname()[1] for listener in sockets}
    try:
        assert shown_url(options.host, sockets) == f"{url}{ports.pop()}" and not ports
        # "::" is every address, IPv4 ones too.
        reachable = "127.0.0.1" if options.host in ("0.0.0.0", "::") else options.host
        socket.create_connection((reachable, sockets[0].getsockname()[1]), timeout=5).close()
    finally:
        for listener in sockets:
            listener.close()


def test_keys_are_in_no_line_of_the_log() -> None:
    """[D-SEC-3]"""
    key = "sk-test-0123456789abcdef"
    with server_process(MODULE, "--api-key", key, "--host", "0.0.0.0") as server:
        server.wait_until_ready()
        server.get(f"/v1/models?api_key={key}")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert key not in server.log and key[8:-4] not in server.log
        assert "401" in server.log


def test_the_start_report(server: ServerProcess) -> None:
    for word in ("tuili 0.", "fake", "context", "kernels"):
        server.wait_for_log(word)


def test_ipv6() -> None:
    with server_process(MODULE, "--host", "::1") as server:
        port = int(server.wait_for_log(r"http://\[::1\]:(\d+)")[1])
        with socket.create_connection(("::1", port), timeout=10) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n\r\n")
            assert read_reply(connection).status == 200
