"""GGUF files as a weight source: memory-mapped, one file or a set of shards.

A file may be hostile: nothing is believed before it has been checked, and every complaint is a ModelFileError that names the
file, the field and both numbers.
"""

import mmap
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tuili.errors import ModelFileError, ModelNotFound
from tuili.quant.format import Bytes
from tuili.quant.registry import FORMATS, GGML_TYPE_NAMES, format_of_type
from tuili.weights.content import content_of
from tuili.weights.gguf_reader import MAX_KEY_BYTES, U32, Metadata, Reader
from tuili.weights.source import MetadataValue, Weight

VERSIONS = (2, 3)
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32
_HEADER_BYTES = 24
_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")

#: First bytes of other files that get renamed to .gguf, or fetched in its place.
_OTHER_FILES: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"PK\x03\x04", "a zip archive (PyTorch checkpoints are zip archives)"),
    (b"\x80\x02", "a Python pickle (an old PyTorch checkpoint)"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x7fELF", "a program"),
    (b"%PDF", "a PDF document"),
    (b"version https://git-lfs", "a Git LFS pointer: the model itself was not fetched"),
    (b"<", "a web page or XML: the download probably got an error page"),
    (b"{", "JSON text"),
    (b"tjgg", "a GGJT file, the format before GGUF: convert the model again"),
    (b"fmgg", "a GGMF file, the format before GGUF: convert the model again"),
    (b"lmgg", "a GGML file, the format before GGUF: convert the model again"),
    (b"FUGG", "a GGUF file with its bytes swapped"),
    (b"\0\0\0\0", "a run of zeros: the download was probably not finished"),
)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A row of the tensor table. ``shape`` is in Hugging Face order; ``start`` counts from the beginning of the file.

    ``num_bytes`` is 0 for a type number that has no decoder here: its block layout is not known.
    """

    name: str
    ggml_type: int
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """One mapped and checked file."""

    path: Path
    map: mmap.mmap
    data: Bytes
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]


class GgufSource:
    """A WeightSource over one GGUF file, or over all shards of one model in their order."""

    def __init__(self, files: Sequence[GgufFile]) -> None:
        self._files: tuple[GgufFile, ...] = tuple(files)
        self._home = {name: file for file in files for name in file.tensors}

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(file.path for file in self._files)

    @property
    def metadata(self) -> Mapping[str, MetadataValue]:
        """The first shard's: the others only carry their own number."""
        return self._files[0].metadata

    def names(self) -> Iterable[str]:
        return self._home.keys()

    def type_name(self, name: str) -> str:
        """The tensor's format by name, whether or not it can be decoded: "Q4_K", "IQ2_XXS", "type 250"."""
        number = self._info(name).ggml_type
        return GGML_TYPE_NAMES.get(number, f"type {number}")

    def tensor(self, name: str) -> Weight:
        """A view of the mapped file; raises ModelFileError for an absent name, NotSupported for a format without decoder."""
        info = self._info(name)
        file = self._home[name]
        fmt = format_of_type(info.ggml_type, f"{file.path}: tensor {name}")
        data = file.data[info.start : info.start + info.num_bytes]
        return Weight(fmt.name, info.shape, {"data": data.reshape(*info.shape[:-1], fmt.row_bytes(info.shape[-1]))})

    def _info(self, name: str) -> TensorInfo:
        file = self._home.get(name)
        if file is None:
            raise ModelFileError(f"{self._files[0].path}: there is no tensor {name} among the {len(self._home)} of the model")
        return file.tensors[name]

    def content(self) -> str:
        return content_of(self.paths)

    def release(self) -> None:
        """Lets the operating system drop the pages read so far; reading them again fetches them from disk."""
        for file in self._files:
            file.map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Forgets the files. Views handed out stay valid: the mapping lives as long as they do."""
        self._files = ()
        self._home = {}


def open_gguf(path: Path | str) -> GgufSource:
    """Opens a GGUF file, or all shards of a model from any one of them.

    Raises ModelNotFound when there is no such file, ModelFileError when a file is damaged, hostile, or something else.
    """
    first = _open_file(Path(path))
    count = _integer(first, "split.count", default=1)
    if count <= 1:
        return GgufSource([first])
    name = _SHARD_NAME.fullmatch(first.path.name)
    if name is None or int(name["count"]) != count:
        raise ModelFileError(f"{first.path}: is one of {count} shards; it has to be named like MODEL-00001-of-{count:05}.gguf")
    files: list[GgufFile] = []
    for number in range(count):
        shard = first.path.with_name(f"{name['stem']}-{number + 1:05}-of-{count:05}.gguf")
        files.append(first if shard == first.path else _open_shard(shard, number, count))
        _check_shard(files[-1], number, count)
    _check_complete(files)
    return GgufSource(files)


def _open_shard(path: Path, number: int, count: int) -> GgufFile:
    if not path.exists():
        raise ModelFileError(f"{path}: shard {number + 1} of {count} is missing; put all shards into one folder")
    return _open_file(path)


def _check_shard(file: GgufFile, number: int, count: int) -> None:
    for key, expected in (("split.count", count), ("split.no", number)):
        actual = _integer(file, key, default=-1)
        if actual != expected:
            raise ModelFileError(f"{file.path}: {key} is {actual}, and by its place in the set it should be {expected}")


def _check_complete(files: Sequence[GgufFile]) -> None:
    seen: dict[str, Path] = {}
    for file in files:
        for name in file.tensors:
            if name in seen:
                raise ModelFileError(f"{file.path}: tensor {name} is in {seen[name].name} too")
            seen[name] = file.path
    expected = _integer(files[0], "split.tensors.count", default=len(seen))
    if expected != len(seen):
        raise ModelFileError(f"{files[0].path}: split.tensors.count is {expected}, and the shards hold {len(seen)} tensors")


def _integer(file: GgufFile, key: str, default: int) -> int:
    value = file.metadata.get(key, default)
    if not isinstance(value, int):
        raise ModelFileError(f"{file.path}: {key} is {value!r}; it has to be an integer")
    return value


def _open_file(path: Path) -> GgufFile:
    try:
        with path.open("rb") as handle:
            size = path.stat().st_size
            _check_kind(path, handle.read(64), size)
            mapping = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFound(f"{path}: there is no such file") from None
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
    data = np.frombuffer(mapping, np.uint8)
    reader = Reader(path, data)
    num_tensors, num_entries = _read_header(reader)
    metadata = reader.metadata(num_entries)
    tensors = _read_tensor_table(reader, num_tensors, _alignment(reader, metadata))
    return GgufFile(path, mapping, data, metadata, tensors)


def _check_kind(path: Path, head: bytes, size: int) -> None:
    if head.startswith(b"GGUF") and size >= _HEADER_BYTES:
        return
    if head.startswith(b"GGUF") or size < 4:
        raise ModelFileError(
            f"{path}: has {size} bytes, and the header of a GGUF file alone takes {_HEADER_BYTES}; fetch it again"
        )
    looks_like = next((what for magic, what in _OTHER_FILES if head.startswith(magic)), None)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < size:
        looks_like = "a safetensors file"
    ending = f"it looks like {looks_like}" if looks_like else f"it begins with {head[:4]!r}"
    raise ModelFileError(f"{path}: is not a GGUF file: {ending}")


def _read_header(reader: Reader) -> tuple[int, int]:
    reader.pos = 4
    version = reader.u32("version")
    if version and version % 65536 == 0:
        raise reader.fail("version", "the file is big-endian; only little-endian files are supported: convert the model again")
    if version not in VERSIONS:
        raise reader.fail("version", f"GGUF version {version}; versions 2 and 3 are supported: convert the model again")
    return reader.u64("tensor count"), reader.u64("metadata count")


def _alignment(reader: Reader, metadata: Metadata) -> int:
    key = "general.alignment"
    value = metadata.get(key, DEFAULT_ALIGNMENT)
    if metadata.types.get(key, U32) != U32 or not isinstance(value, int):
        raise reader.fail(
            key, f"is {value!r} of value type {metadata.types[key]}; it has to be an unsigned 32-bit integer (type {U32})"
        )
    if value == 0 or value & (value - 1):
        raise reader.fail(key, f"is {value}; it has to be a power of two")
    return value


def _read_tensor_table(reader: Reader, count: int, alignment: int) -> Mapping[str, TensorInfo]:
    shortest = 8 + 1 + 4 + 8 + 4 + 8
    reader.need(count * shortest, f"{count} tensors")
    rows: dict[str, tuple[int, tuple[int, ...], int]] = {}
    for index in range(count):
        name = reader.string(f"name of tensor {index}", MAX_KEY_BYTES)
        if name in rows:
            raise reader.fail(f"tensor {name}", "is in the tensor table twice")
        num_dims = reader.u32(f"tensor {name}: number of dimensions")
        if not 1 <= num_dims <= MAX_DIMS:
            raise reader.fail(f"tensor {name}", f"has {num_dims} dimensions; 1 to {MAX_DIMS} are possible")
        dims = [reader.u64(f"tensor {name}: dimension {i}") for i in range(num_dims)]
        rows[name] = (reader.u32(f"tensor {name}: type"), tuple(reversed(dims)), reader.u64(f"tensor {name}: offset"))
    data_start = reader.pos + -reader.pos % alignment
    tensors = {name: _tensor_info(reader, name, row, data_start, alignment) for name, row in rows.items()}
    _check_no_overlap(reader, tensors.values())
    return tensors


def _tensor_info(reader: Reader, name: str, row: tuple[int, tuple[int, ...], int], data_start: int, alignment: int) -> TensorInfo:
    ggml_type, shape, offset = row
    field = f"tensor {name}"
    if 0 in shape:
        raise reader.fail(field, f"has shape {list(shape)}; every dimension has to be at least 1")
    if offset % alignment:
        raise reader.fail(field, f"begins at offset {offset}, which is not a multiple of the alignment {alignment}")
    fmt = FORMATS.get(GGML_TYPE_NAMES.get(ggml_type, ""))
    num_bytes = 0
    if fmt is not None:
        try:
            num_bytes = fmt.row_bytes(shape[-1])
        except ValueError as error:
            raise reader.fail(field, str(error)) from None
        for dim in shape[:-1]:
            num_bytes *= dim
    start = data_start + offset
    if start + num_bytes > reader.size:
        problem = f"with shape {list(shape)} ends at byte {start + num_bytes}, and the file has {reader.size}"
        raise reader.fail(field, f"{problem}; it is cut off or damaged: fetch it again")
    return TensorInfo(name, ggml_type, shape, start, num_bytes)


def _check_no_overlap(reader: Reader, tensors: Iterable[TensorInfo]) -> None:
    previous: TensorInfo | None = None
    for info in sorted(tensors, key=lambda t: t.start):
        if previous is not None and info.start < previous.start + previous.num_bytes:
            end = previous.start + previous.num_bytes
            raise reader.fail(
                f"tensor {info.name}", f"begins at byte {info.start}, inside {previous.name}, which ends at byte {end}"
            )
        previous = info
