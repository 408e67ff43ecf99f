"""A weight format: how a row of numbers is stored, and its exact decoding.

A ``QuantFormat`` describes blocks: ``block_size`` consecutive elements of a row take ``block_bytes`` bytes. ``decode`` is the
definition, in NumPy, bit for bit what the reference decoder of the format does; native kernels are tested against it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """One storage format. ``name`` is the field's (Q4_K, BF16, …); ``ggml_type`` its number in GGUF files.

    ``decode`` takes bytes [..., num_blocks * block_bytes] and returns float32 [..., num_blocks * block_size].
    ``layout`` names the fields of one block as a NumPy record; None for plain numbers.
    """

    name: str
    ggml_type: int
    block_size: int
    block_bytes: int
    decode: Callable[[Bytes], Floats]
    layout: np.dtype[np.void] | None = None

    def row_bytes(self, num_elements: int) -> int:
        """Bytes of a row of ``num_elements``; raises ValueError when it is not a whole number of blocks."""
        blocks, rest = divmod(num_elements, self.block_size)
        if rest:
            raise ValueError(f"{self.name} stores blocks of {self.block_size} elements; a row of {num_elements} does not fit")
        return blocks * self.block_bytes
