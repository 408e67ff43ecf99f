"""The machine a measurement was made on, and how quiet it was at that moment."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np


def describe() -> str:
    """CPU, cores, memory, kernel, Python and NumPy, in one line."""
    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.machine()
    )
    memory = next((int(line.split()[1]) >> 20 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    hardware = f"{cpu}, {len(os.sched_getaffinity(0))} cores, {memory} GiB"
    return f"{hardware}, {platform.system()} {platform.release()}, Python {platform.python_version()}, NumPy {np.__version__}"


@dataclass(frozen=True)
class Probe:
    """``bandwidth``: GB/s that one core reads from memory. ``round_trip``: microseconds for a message to another process and
    back. ``stolen``: percent of CPU time that the host has taken since start-up. Figures that move between passes mean that
    the machine was shared with something else."""

    bandwidth: float
    round_trip: float
    load: float
    stolen: float

    def __str__(self) -> str:
        return f"{self.bandwidth:.1f} GB/s, round trip {self.round_trip:.0f} µs, load {self.load:.1f}, stolen {self.stolen:.1f} %"


def load() -> str:
    """What says, in a few words, whether something else was running."""
    return f"load {os.getloadavg()[0]:.1f}, stolen {_stolen():.1f} %"


def probe() -> Probe:
    """Takes about a quarter of a second."""
    return Probe(_bandwidth(), _round_trip(), os.getloadavg()[0], _stolen())


def _bandwidth() -> float:
    data = np.ones(16 << 20, np.float32)
    return data.nbytes / min(_seconds(data.sum) for _ in range(5)) / 1e9


def _echo(pipe: Connection, times: int) -> None:
    for _ in range(times):
        pipe.send_bytes(pipe.recv_bytes())


def _round_trip(times: int = 2000) -> float:
    ours, theirs = get_context("spawn").Pipe()
    child = get_context("spawn").Process(target=_echo, args=(theirs, times + 1))
    child.start()

    def ping_pong(count: int) -> None:
        for _ in range(count):
            ours.send_bytes(b"x")
            ours.recv_bytes()

    ping_pong(1)  # until the child is there
    seconds = _seconds(lambda: ping_pong(times))
    child.join()
    return seconds / times * 1e6


def _stolen() -> float:
    fields = [int(field) for field in _lines("/proc/stat")[0].split()[1:9]]
    return 100 * fields[7] / max(sum(fields), 1)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
