"""A server under test: started as a process, waited for, its memory read, stopped."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx2


@dataclass(frozen=True)
class ServerCommand:
    """``kv_bytes``: how much memory it sets aside for keys and values. ``ready``: where it answers 200 once it has its model.
    ``environment`` is added to ours."""

    name: str
    command: tuple[str, ...]
    port: int
    kv_bytes: int
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: str = "/health"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Server:
    """Runs it as a context; inside, it answers at ``url``. It gets a session of its own, so that what it started ends with it."""

    def __init__(self, command: ServerCommand, *, patience: float = 600.0) -> None:
        self.command = command
        self.url = f"http://127.0.0.1:{command.port}"
        self._patience = patience

    def __enter__(self) -> "Server":
        self._log = tempfile.NamedTemporaryFile("w+", prefix=f"{self.command.name}-", suffix=".log")
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            self.command.command,
            env={**os.environ, **self.command.environment},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        while left := self._processes():  # helpers that outlived it
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        self._log.close()

    def peak_memory(self) -> int:
        """Bytes: the largest resident size that each of its processes ever had, summed."""
        return sum(_peak(pid) for pid in self._processes())

    def log(self) -> str:
        return Path(self._log.name).read_text(errors="replace")

    def _wait(self) -> None:
        with httpx2.Client(timeout=5, trust_env=False) as http:
            while self._process.poll() is None and time.monotonic() - self._started < self._patience:
                with contextlib.suppress(httpx2.TransportError):
                    if http.get(self.url + self.command.ready).status_code == 200:
                        return
                time.sleep(0.2)
        sys.exit(f"{self.command.name} did not become ready; the end of its output:\n{self.log()[-3000:]}")

    def _processes(self) -> list[int]:
        """Of its session: the server and what it started."""
        found: list[int] = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    fields = (folder / "stat").read_text().rpartition(")")[2].split()
                except OSError:  # it ended meanwhile
                    continue
                if int(fields[3]) == self._process.pid and fields[0] != "Z":
                    found.append(int(folder.name))
        return found


def _peak(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM")), 0)
