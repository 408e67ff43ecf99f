"""Reads the header, metadata and tensor table of one GGUF file, believing nothing: each length is checked against the file's
size before anything of that length is touched or allocated.

Format: docs/gguf.md of ggml. Versions 2 and 3, little-endian.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tuili.errors import ModelFileError, NotSupported
from tuili.quant.format import Bytes
from tuili.weights.source import MetadataValue

U32, BOOL, STRING, ARRAY = 4, 7, 8, 9
_SCALARS: Mapping[int, np.dtype[np.generic]] = {
    number: np.dtype(code)
    for number, code in {
        **{0: "u1", 1: "i1", 2: "<u2", 3: "<i2", U32: "<u4", 5: "<i4", 6: "<f4", BOOL: "u1"},
        **{10: "<u8", 11: "<i8", 12: "<f8"},
    }.items()
}

MAX_KEY_BYTES = 65535
#: No real file comes near these; a hostile one must not make us allocate without end.
MAX_STRING_BYTES = 16 << 20
MAX_ARRAY_LENGTH = 4 << 20

#: Bytes looked at in one go when the strings of an array are located.
_WINDOW = 1 << 20
#: Strings stepped over one by one where the fast way stops; doubled, up to the second number, while it keeps stopping.
_STRIDE, _MAX_STRIDE = 1024, 1 << 18


class Metadata(Mapping[str, MetadataValue]):
    """Key-value pairs; arrays become lists on first access, since a vocabulary takes time and is not always wanted."""

    def __init__(self) -> None:
        self.types: dict[str, int] = {}
        self._values: dict[str, MetadataValue] = {}
        self._arrays: dict[str, Callable[[], MetadataValue]] = {}

    def add(self, key: str, kind: int, value: MetadataValue | Callable[[], MetadataValue]) -> None:
        self.types[key] = kind
        if callable(value):
            self._arrays[key] = value
        else:
            self._values[key] = value

    def __getitem__(self, key: str) -> MetadataValue:
        if key in self._arrays:
            self._values[key] = self._arrays.pop(key)()
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self.types

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)


class Reader:
    """A position in a mapped file. Every method raises ModelFileError naming the file, ``field`` and both numbers."""

    def __init__(self, path: Path, data: Bytes) -> None:
        self.path = path
        self.data = data
        self.size = int(data.size)
        self.pos = 0

    def fail(self, field: str, problem: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {field}: {problem}")

    def need(self, num_bytes: int, field: str) -> None:
        """There have to be that many bytes from here on."""
        if num_bytes > self.size - self.pos:
            left = self.size - self.pos
            message = f"needs {num_bytes} bytes at byte {self.pos}, and the file has {left} left of {self.size}"
            raise self.fail(field, f"{message}; it is cut off or damaged: fetch it again")

    def u32(self, field: str) -> int:
        return self._integer(4, field)

    def u64(self, field: str) -> int:
        return self._integer(8, field)

    def _integer(self, size: int, field: str) -> int:
        self.need(size, field)
        self.pos += size
        return int.from_bytes(self.data[self.pos - size : self.pos].tobytes(), "little")

    def string(self, field: str, max_bytes: int) -> str:
        """UTF-8; bytes that are not are kept as lone surrogates (surrogateescape), so that nothing is lost."""
        length = self.u64(f"length of {field}")
        self.need(length, field)
        if length > max_bytes:
            raise self.fail(field, f"is {length} bytes long; at most {max_bytes} are allowed")
        self.pos += length
        return self.data[self.pos - length : self.pos].tobytes().decode("utf-8", "surrogateescape")

    def metadata(self, count: int) -> Metadata:
        """``count`` entries: key, type number, value."""
        shortest = 8 + 1 + 4 + 1
        self.need(count * shortest, f"{count} metadata entries")
        entries = Metadata()
        for index in range(count):
            key = self.string(f"key of metadata entry {index}", MAX_KEY_BYTES)
            if key in entries:
                raise self.fail(key, "is in the metadata twice")
            kind = self.u32(f"type of {key}")
            entries.add(key, kind, self._value(key, kind))
        return entries

    def _value(self, key: str, kind: int) -> MetadataValue | Callable[[], MetadataValue]:
        if kind == STRING:
            return self.string(key, MAX_STRING_BYTES)
        if kind == ARRAY:
            return self._array(key)
        return self._scalars(key, kind, 1)()[0]

    def _array(self, key: str) -> Callable[[], MetadataValue]:
        kind = self.u32(f"element type of {key}")
        count = self.u64(f"length of {key}")
        if kind == ARRAY:
            raise NotSupported(f"{self.path}: {key}: arrays of arrays are not supported")
        self.need(count * (8 if kind == STRING else self._dtype(key, kind).itemsize), f"{key} ({count} elements)")
        if count > MAX_ARRAY_LENGTH:
            raise self.fail(key, f"has {count} elements; at most {MAX_ARRAY_LENGTH} are allowed")
        return self._strings(key, count) if kind == STRING else self._scalars(key, kind, count)

    def _dtype(self, key: str, kind: int) -> np.dtype[np.generic]:
        if kind not in _SCALARS:
            raise self.fail(key, f"has value type {kind}; types 0 to 12 are known")
        return _SCALARS[kind]

    def _scalars(self, key: str, kind: int, count: int) -> Callable[[], list[int] | list[float] | list[bool]]:
        dtype = self._dtype(key, kind)
        self.need(count * dtype.itemsize, key)
        raw = self.data[self.pos : self.pos + count * dtype.itemsize].view(dtype)
        self.pos += count * dtype.itemsize
        if kind != BOOL:
            return raw.tolist
        if count and raw.max() > 1:
            raise self.fail(key, f"is a truth value of {raw.max()}; it has to be 0 or 1")
        return raw.astype(np.bool_).tolist

    def _strings(self, key: str, count: int) -> Callable[[], list[str]]:
        offsets = np.empty(count + 1, np.int64)
        found, stride = 0, _STRIDE
        while found < count:
            gained = self._scan_short_strings(offsets[found:count])
            found += gained
            stride = _STRIDE if gained >= _STRIDE else min(2 * stride, _MAX_STRIDE)
            if gained < _STRIDE:
                found += self._step_over_strings(key, offsets[found:count][:stride])
        if self.pos > self.size:
            raise self.fail(
                key, f"ends at byte {self.pos}, and the file has {self.size}; it is cut off or damaged: fetch it again"
            )
        offsets[count] = self.pos
        return lambda: decode_strings(self.data, offsets)

    def _scan_short_strings(self, offsets: npt.NDArray[np.int64]) -> int:
        """Locates strings of up to 255 bytes, many at once: a length field is then a byte and seven zeros, which text never has.

        Fills ``offsets`` with the positions of the length fields as far as each leads exactly to the next; returns how many.
        Anything unusual (a long or empty string, zeros in the text) ends the run, and is left to _step_over_strings.
        """
        window = self.data[self.pos : self.pos + _WINDOW]
        if window.size < 8:
            return 0
        lengths_anywhere = np.ndarray(window.size - 7, "<u8", window, strides=(1,))
        fields = np.flatnonzero(lengths_anywhere < 256)[: len(offsets)]
        if fields.size == 0 or fields[0] != 0:
            return 0
        ends = fields + 8 + lengths_anywhere[fields].astype(np.int64)
        breaks = np.flatnonzero(ends[:-1] != fields[1:])
        gained = int(breaks[0]) + 1 if breaks.size else fields.size
        offsets[:gained] = fields[:gained] + self.pos
        self.pos += int(ends[gained - 1])
        return gained

    def _step_over_strings(self, key: str, offsets: npt.NDArray[np.int64]) -> int:
        raw = self.data.data
        for i in range(len(offsets)):
            offsets[i] = self.pos
            if self.pos + 8 > self.size:
                self.need(8, f"length of a string of {key}")
            (length,) = struct.unpack_from("<Q", raw, self.pos)
            self.pos += 8
            if length > MAX_STRING_BYTES or self.pos + length > self.size:
                self.need(length, f"a string of {key}")
                raise self.fail(key, f"has a string of {length} bytes; at most {MAX_STRING_BYTES} are allowed")
            self.pos += length
        return len(offsets)


def decode_strings(data: Bytes, offsets: npt.NDArray[np.int64]) -> list[str]:
    """Strings whose 8-byte length fields are at offsets[:-1]; offsets[-1] is the end of the last."""
    starts = offsets[:-1] - offsets[0]
    blob = data[offsets[0] : offsets[-1]]
    # Of each length field keep one byte, zero, as a separator: then the whole array is decoded and split in two calls.
    keep = np.ones(blob.size, np.bool_)
    for i in range(7):
        keep[starts + i] = False
    text = blob[keep]
    if np.count_nonzero(text == 0) == len(starts):
        return text.tobytes().decode("utf-8", "surrogateescape").split("\0")[1:]
    raw = blob.tobytes()
    ends = offsets[1:] - offsets[0]
    return [raw[a + 8 : b].decode("utf-8", "surrogateescape") for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
