"""What this machine can do at best at this moment, measured: the limits that speeds are compared with.

A host moves its guests' processors about, and its other guests take their share, so limits change within seconds: measure them
before and after whatever is compared with them.
"""

from dataclasses import dataclass, fields

from tuili.backends.cpu.native import extension, isa_level, usable_cpus
from tuili.config.machine import last_level_cache_bytes
from tuili.config.options import IsaName
from tuili.errors import BackendError

#: What is read: at least this much, and several times the last level of cache.
MIN_BUFFER_BYTES = 256 * 2**20
CACHES_IN_BUFFER = 4

STEADY_RATIO = 1.15


@dataclass(frozen=True, slots=True)
class Limits:
    """``read_bandwidth``: bytes a second from memory, all threads together. ``int8_peak``, ``fp32_peak``: operations a second, a
    multiplication and an addition being two. ``core_latency``: seconds from one core to another; 0 with one thread."""

    read_bandwidth: float
    int8_peak: float
    fp32_peak: float
    core_latency: float

    def record(self) -> dict[str, float]:
        """For JSON."""
        return {
            "read_bytes_per_second": round(self.read_bandwidth),
            "int8_operations_per_second": round(self.int8_peak),
            "fp32_operations_per_second": round(self.fp32_peak),
            "core_latency_ns": round(self.core_latency * 1e9, 1),
        }

    def __str__(self) -> str:
        latency = f", core to core {self.core_latency * 1e9:.0f} ns" if self.core_latency else ""
        return (
            f"reads {self.read_bandwidth / 1e9:.1f} GB/s, int8 {self.int8_peak / 1e9:.0f} Gop/s, "
            f"fp32 {self.fp32_peak / 1e9:.0f} Gop/s{latency}"
        )


class Prober:
    """Measures limits with ``threads`` threads (None: all usable CPUs) and the instructions of ``isa`` (None: the best here).

    Holds a buffer of 256 MiB or more, and threads that sleep between measurements. Raises BackendError without the compiled
    extension, for a level that this CPU lacks, and when the buffer or the threads cannot be had.
    """

    def __init__(self, threads: int | None = None, isa: IsaName | None = None) -> None:
        self.threads = threads or usable_cpus()
        num_bytes = max(MIN_BUFFER_BYTES, CACHES_IN_BUFFER * (last_level_cache_bytes() or 0))
        try:
            self._native = extension().Probe(isa_level(isa), self.threads, num_bytes)
        except MemoryError as error:
            raise BackendError(f"measuring the memory takes {num_bytes // 2**20} MiB of it, which are not free") from error
        except RuntimeError as error:
            raise BackendError(f"the system does not let {self.threads} threads start ({error}); set fewer threads") from error

    def measure(self) -> Limits:
        """All limits; takes about 60 ms."""
        native = self._native
        latency = native.core_latency() if self.threads > 1 else 0.0
        return Limits(native.read_bandwidth(), native.int8_peak(), native.fp32_peak(), latency)

    def small_page_read_bandwidth(self) -> float:
        """Bytes a second from 4 KiB pages: what the memory gives when the system grants no huge ones. Takes a second buffer."""
        return self._native.small_page_read_bandwidth()


def between(before: Limits, after: Limits) -> Limits:
    """The limits of what ran between two measurements: their mean."""
    return Limits(*((getattr(before, f.name) + getattr(after, f.name)) / 2 for f in fields(Limits)))


def steady(before: Limits, after: Limits) -> bool:
    """Whether two measurements agree well enough for what ran between them to be compared with their mean."""
    pairs = ((getattr(before, name), getattr(after, name)) for name in ("read_bandwidth", "int8_peak", "fp32_peak"))
    return all(max(pair) <= STEADY_RATIO * min(pair) for pair in pairs)
