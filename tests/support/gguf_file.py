"""Writes small GGUF files: valid ones for tiny models, and broken ones, since every count, offset and type can be overridden.

    write_gguf(path, {"general.architecture": "llama", "llama.block_count": 2}, [tensor("output.weight", weight)])

Metadata types follow from the Python value (str, bool, float -> f32, int -> u32 or i64, lists of one of these); ``Typed`` gives
another type. Layout: the GGUF specification in ggml's docs/gguf.md, version 3.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tuili.quant.registry import FORMATS
from tuili.weights.source import Weight

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


@dataclass(frozen=True)
class Typed:
    """A metadata value of a chosen type number. For arrays ``item`` is the elements' type; ``count`` can lie about how many."""

    type: int
    value: object
    item: int | None = None
    count: int | None = None


@dataclass(frozen=True)
class TensorRecord:
    """``shape`` in Hugging Face order. ``offset`` (from the start of the data section) is filled in when None."""

    name: str
    ggml_type: int
    shape: tuple[int, ...]
    data: bytes
    offset: int | None = None


@dataclass
class Header:
    """What usually follows from the content; set a field to write something else."""

    magic: bytes = b"GGUF"
    version: int = 3
    num_tensors: int | None = None
    num_metadata: int | None = None
    alignment: int = 32
    order: str = field(default="<")


def tensor(name: str, value: Weight | npt.NDArray[np.float32]) -> TensorRecord:
    """A record of a weight in any format, or of a float32 array."""
    if isinstance(value, Weight):
        return TensorRecord(name, FORMATS[value.format].ggml_type, value.shape, value.data.tobytes())
    return TensorRecord(name, 0, value.shape, value.astype("<f4").tobytes())


def gguf_bytes(metadata: Mapping[str, object], tensors: Sequence[TensorRecord] = (), header: Header | None = None) -> bytes:
    h = header or Header()
    out = h.magic + struct.pack(
        h.order + "IQQ",
        h.version,
        len(tensors) if h.num_tensors is None else h.num_tensors,
        len(metadata) if h.num_metadata is None else h.num_metadata,
    )
    for key, value in metadata.items():
        out += _string(key) + _value(value)
    data = b""
    for t in tensors:
        offset = len(data) if t.offset is None else t.offset
        dims = tuple(reversed(t.shape))
        out += _string(t.name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, t.ggml_type, offset)
        data += t.data + bytes(-len(t.data) % h.alignment)
    return out + bytes(-len(out) % h.alignment) + data


def write_gguf(
    path: Path, metadata: Mapping[str, object], tensors: Sequence[TensorRecord] = (), header: Header | None = None
) -> Path:
    path.write_bytes(gguf_bytes(metadata, tensors, header))
    return path


def _string(text: str | bytes) -> bytes:
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def _value(value: object) -> bytes:
    typed = value if isinstance(value, Typed) else _typed(value)
    return struct.pack("<I", typed.type) + _payload(typed)


def _typed(value: object) -> Typed:
    match value:
        case bool():
            return Typed(BOOL, value)
        case int():
            return Typed(U32 if 0 <= value < 2**32 else I64, value)
        case float():
            return Typed(F32, value)
        case str():
            return Typed(STRING, value)
        case list():
            return Typed(ARRAY, value, item=_typed(value[0]).type if value else U32)
        case _:
            raise TypeError(f"no GGUF type for {value!r}")


def _payload(typed: Typed) -> bytes:
    value = typed.value
    if typed.type == STRING:
        assert isinstance(value, str | bytes)
        return _string(value)
    if typed.type == ARRAY:
        assert isinstance(value, Sequence)
        count = len(value) if typed.count is None else typed.count
        head = struct.pack("<IQ", typed.item, count)
        return head + b"".join(_payload(v if isinstance(v, Typed) else Typed(typed.item or 0, v)) for v in value)
    if typed.type not in _CODES:
        assert isinstance(value, bytes)
        return value
    return struct.pack("<" + _CODES[typed.type], value)
