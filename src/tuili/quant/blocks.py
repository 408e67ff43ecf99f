"""Formats as block layouts: a NumPy record type names the fields of one block, a function turns blocks into numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tuili.quant.format import Bytes, Floats, QuantFormat

Blocks = npt.NDArray[np.void]
BlockDecoder = Callable[[Any], Floats]

#: Blocks decoded at a time: temporaries stay in the cache, and a tensor of any size needs little memory beside its result.
_CHUNK = 4096


def block_format(
    name: str, ggml_type: int, block_size: int, layout: list[tuple[str, str] | tuple[str, str, int]], decode: BlockDecoder
) -> QuantFormat:
    """A format whose blocks are records of ``layout``; ``decode`` turns records [blocks] into float32 [blocks, block_size]."""
    record: np.dtype[np.void] = np.dtype(layout)

    def decode_bytes(data: Bytes) -> Floats:
        *leading, row_bytes = data.shape
        if row_bytes % record.itemsize:
            raise ValueError(f"{name}: {row_bytes} bytes are not a whole number of {record.itemsize}-byte blocks")
        blocks = np.ascontiguousarray(data).reshape(-1).view(record)
        out = np.empty((blocks.size, block_size), np.float32)
        # Blocks may hold any bits, infinities and NaN scales included: those decode to what IEEE arithmetic gives.
        with np.errstate(invalid="ignore", over="ignore"):
            for start in range(0, blocks.size, _CHUNK):
                out[start : start + _CHUNK] = decode(blocks[start : start + _CHUNK])
        return out.reshape(*leading, row_bytes // record.itemsize * block_size)

    return QuantFormat(name, ggml_type, block_size, record.itemsize, decode_bytes, record)


def as_f32(field: npt.NDArray[Any]) -> Floats:
    """One number a block as a float32 column [blocks, 1]."""
    return field.astype(np.float32)[:, None]


def unpack(data: Bytes, bits: int, group: int) -> Bytes:
    """Fields of ``bits`` bits out of bytes [blocks, n], low bits first: [blocks, n * 8 / bits].

    Bytes come in groups of ``group``: first the lowest field of every byte of a group, then the next field of each, and so on.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = data.reshape(len(data), -1, 1, group) >> shifts
    return (fields & np.uint8((1 << bits) - 1)).reshape(len(data), -1)
