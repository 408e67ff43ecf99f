"""Servers for tests: one in a thread of this process, one as a process of its own, and a raw connection to either."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import openai
import uvicorn

from tuili.config.options import ServerOptions
from tuili.engine.build import LoadedEngine
from tuili.server.bind import open_sockets
from tuili.server.lifecycle import uvicorn_config
from tuili.server.service import Service

ROOT = Path(__file__).parents[2]
MODEL = "fake"


class RunningServer:
    """A server in a thread. ``service`` belongs to that thread's event loop: tests only read it."""

    def __init__(self, loaded: LoadedEngine | None, options: ServerOptions) -> None:
        sockets = open_sockets(options)
        self.port: int = sockets[0].getsockname()[1]
        self.service = Service(MODEL, options)
        if loaded is not None:
            self.service.become_ready(loaded)
        self._server = uvicorn.Server(uvicorn_config(self.service))
        self._thread = threading.Thread(target=self._server.run, args=(sockets,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def openai(self, key: str = "unused") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=30)

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> "Reply":
        """``body``: bytes as they are, anything else as JSON. The connection is closed afterwards."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        sent = {"Host": "localhost", "Connection": "close", "Content-Length": str(len(data)), **(headers or {})}
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        return self.exchange(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data)

    def exchange(self, raw: bytes) -> "Reply":
        with self.connect() as connection:
            connection.sendall(raw)
            return read_reply(connection)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def metrics(self) -> dict[str, float]:
        """Metric with its labels, but for the model's name -> value."""
        text = self.request("GET", "/metrics").body.decode()
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
        return {re.sub(r',?model_name="[^"]*"', "", name).replace("{}", ""): float(value) for name, value in lines}

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server does not stop"
        if self.service.loaded is not None:
            self.service.loaded.client.shutdown()


@contextlib.contextmanager
def running_server(loaded: LoadedEngine | None, **options: Any) -> Iterator[RunningServer]:
    server = RunningServer(loaded, ServerOptions(**{"port": 0, **options}))
    try:
        yield server
    finally:
        server.close()


class Reply:
    """A raw HTTP reply. ``json`` refuses NaN and Infinity."""

    def __init__(self, raw: bytes) -> None:
        head, _, body = raw.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(status.split()[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.body = _unchunk(body) if self.headers.get("transfer-encoding") == "chunked" else body

    @property
    def json(self) -> Any:
        return json.loads(self.body, parse_constant=_refuse_constant)

    @property
    def events(self) -> list[Any]:
        """Server-sent events, ``[DONE]`` as that string."""
        datas = [block.removeprefix("data: ") for block in self.body.decode().split("\n\n") if block]
        return [data if data == "[DONE]" else json.loads(data, parse_constant=_refuse_constant) for data in datas]


def read_reply(connection: socket.socket) -> Reply:
    """Reads until the server closes."""
    raw = b""
    while data := connection.recv(65536):
        raw += data
    return Reply(raw)


def _unchunk(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        whole += rest[: int(size, 16)]
        body = rest[int(size, 16) + 2 :]
    return whole


def _refuse_constant(name: str) -> float:
    raise AssertionError(f"{name} is not JSON")


def wait_until(condition: Callable[[], bool], what: str, timeout: float = 10.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout} s in vain: {what}"
        time.sleep(0.02)


class ServerProcess:
    """A server as a process; its log is collected line by line. ``arguments`` go to ``python -m`` or are a command."""

    def __init__(self, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_for_log(self, pattern: str, timeout: float = 30.0) -> re.Match[str]:
        found: list[re.Match[str]] = []

        def seen() -> bool:
            match = re.search(pattern, self.log)
            if match:
                found.append(match)
            return match is not None or self.process.poll() is not None

        wait_until(seen, f"{pattern!r} in the log", timeout)
        match = re.search(pattern, self.log)
        assert match, f"{pattern!r} not in the log before the end:\n{self.log}"
        return match

    @property
    def port(self) -> int:
        return int(self.wait_for_log(r"http://\S+?:(\d+)")[1])

    def wait_until_ready(self) -> None:
        wait_until(lambda: self.get("/ready") == 200, "ready", 60)

    def get(self, path: str) -> int:
        """The status of a GET; 0 when nobody listens."""
        try:
            return self.fetch(path).status
        except ConnectionError:
            return 0

    def fetch(self, path: str) -> Reply:
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            return read_reply(connection)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 30.0) -> int:
        code = self.process.wait(timeout)
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()


@contextlib.contextmanager
def server_process(module: str, *arguments: str, **environment: str) -> Iterator[ServerProcess]:
    """``python -m module arguments`` as a server."""
    server = ServerProcess([sys.executable, "-m", module, *arguments], environment)
    try:
        yield server
    finally:
        server.close()
