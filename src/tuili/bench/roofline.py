"""The least time that a piece of work takes on a machine: bytes over bandwidth, or operations over peak, whichever is longer."""

from dataclasses import dataclass
from typing import Literal

from tuili.bench.probes import Limits

Bound = Literal["memory", "int8", "fp32"]


@dataclass(frozen=True, slots=True)
class Work:
    """What has to be done at least: bytes read from memory once, operations on integers and on floats (a multiplication and an
    addition are two)."""

    num_bytes: float = 0.0
    int8_operations: float = 0.0
    fp32_operations: float = 0.0

    @property
    def operations(self) -> float:
        return self.int8_operations + self.fp32_operations

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.num_bytes + other.num_bytes,
            self.int8_operations + other.int8_operations,
            self.fp32_operations + other.fp32_operations,
        )

    def bound(self, limits: Limits) -> tuple[float, Bound]:
        """The least seconds, and what they go to. Reading and computing overlap; integers and floats share the cores."""
        memory = self.num_bytes / limits.read_bandwidth
        int8, fp32 = self.int8_operations / limits.int8_peak, self.fp32_operations / limits.fp32_peak
        if memory >= int8 + fp32:
            return memory, "memory"
        return int8 + fp32, "int8" if int8 >= fp32 else "fp32"


def matrix_work(fmt: str, num_bytes: float, products: float) -> Work:
    """A matrix read once and ``products`` multiplications with it: integers, but for the float formats."""
    floats = fmt in ("F32", "F16", "BF16")
    return Work(num_bytes, 0.0 if floats else 2 * products, 2 * products if floats else 0.0)
