"""Weights into native memory: matrices packed into one arena, vectors as float32.

Packing reads the model file once and doubles nothing: pages of the file are given back as soon as their rows are packed. What an
earlier start packed is mapped instead, where it was kept (``pack_cache``). An embedding that is not the output matrix too stays
in the model file: a step reads a row a token of it.
"""

import hashlib
import logging
import mmap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tuili.backends.base import PLAIN_LOADING, Loading, PackStore
from tuili.backends.cpu.lower import matrices_of
from tuili.backends.cpu.native import layout_digest
from tuili.backends.cpu.pack_cache import PackCache
from tuili.backends.cpu.pack_file import PackHeader, PackKey, PackProblem
from tuili.config.options import IsaName
from tuili.errors import BackendError, CacheError
from tuili.program.program import NUMERICS_VERSION, Program
from tuili.quant.format import Bytes
from tuili.quant.registry import format_of
from tuili.weights.source import Weight

if TYPE_CHECKING:
    from tuili.backends.cpu.native import Executor

log = logging.getLogger(__name__)

#: Ops that multiply with their weights, or the matrices among them. These are packed.
MULTIPLIERS = frozenset({"linear", "gate_up_act", "moe_linear"})

#: Rows packed at a time have about as many bytes in the file: so much of it is in memory twice.
_SLICE_BYTES = 8 * 2**20

#: Of a packed matrix; slices hold whole tiles (native/kernels/linear.h).
_TILE_ROWS = 16


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight to be packed: ``count`` matrices [rows, cols], one an expert."""

    name: str
    format: str
    count: int
    rows: int
    cols: int

    @property
    def ggml_type(self) -> int:
        return format_of(self.format).ggml_type


@dataclass(slots=True)
class PackedWeights:
    """Native ids by weight name. ``num_bytes`` of the packed matrices; ``origin``: where they came from, in words.
    ``stored``: what the ``tables`` read."""

    num_bytes: int
    origin: str
    matrices: dict[str, int]
    vectors: dict[str, int] = field(default_factory=dict[str, int])
    tables: dict[str, int] = field(default_factory=dict[str, int])
    stored: list[Bytes] = field(default_factory=list[Bytes])


def matrix_names(program: Program) -> set[str]:
    """Weights that are matrices, packed or not. A tied embedding is one matrix that two instructions name."""
    return packed_names(program) | {name for instr in program.instrs if instr.op == "embed" for name in instr.weights}


def packed_names(program: Program) -> set[str]:
    """Weights that are packed: those that anything is multiplied with."""
    return {name for instr in program.instrs if instr.op in MULTIPLIERS for name in matrices_of(instr)}


def load_weights(
    executor: "Executor",
    isa: IsaName,
    program: Program,
    weights: Mapping[str, Weight],
    loading: Loading = PLAIN_LOADING,
) -> PackedWeights:
    """Give the executor all weights: mapped from a pack where there is one that fits, else packed.

    A pack that does not fit, or is damaged, is said and made again. Raises BackendError when the matrices do not fit in memory.
    """
    matrices = _matrices(program, weights)
    packed = _load_matrices(executor, isa, matrices, weights, loading)
    tables = matrix_names(program) - packed.matrices.keys()
    for name in program.weights:
        if name in packed.matrices:
            continue
        weight = weights[name]
        fmt = format_of(weight.format)
        if name in tables:
            rows = _with_whole_rows(weight.data)
            packed.tables[name] = executor.add_table(fmt.ggml_type, weight.shape[-1], rows)
            packed.stored.append(rows)
        else:
            values = fmt.decode(weight.data).reshape(-1)
            packed.vectors[name] = executor.add_vector(np.ascontiguousarray(values, np.float32))
    return packed


def compile_pack(
    executor: "Executor", isa: IsaName, program: Program, weights: Mapping[str, Weight], loading: Loading
) -> tuple[Path, bool]:
    """See that there is a pack of these weights: its path, and whether it had to be made. Raises CacheError when it cannot be
    kept, and what ``load_weights`` raises."""
    assert loading.packs
    matrices = _matrices(program, weights)
    cache, key = _cache(loading.packs), _key(loading.packs, isa, matrices)
    if _map(executor, cache, key, matrices) is not None:
        return cache.path(key), False
    _pack(executor, matrices, weights, loading)
    return _save(executor, cache, key, loading), True


def _load_matrices(
    executor: "Executor", isa: IsaName, matrices: Sequence[Matrix], weights: Mapping[str, Weight], loading: Loading
) -> PackedWeights:
    if loading.packs is None:
        return _pack(executor, matrices, weights, loading)
    cache, key = _cache(loading.packs), _key(loading.packs, isa, matrices)
    was_there = cache.path(key).exists()
    packed = _map(executor, cache, key, matrices)
    if packed is None:
        packed = _pack(executor, matrices, weights, loading)
        if cache.write or was_there:
            try:
                _save(executor, cache, key, loading)
            except CacheError as error:
                log.warning("%s", error)
    return packed


def _matrices(program: Program, weights: Mapping[str, Weight]) -> list[Matrix]:
    """In the program's order, which is the order in memory."""
    names = packed_names(program)
    found: list[Matrix] = []
    for name, decl in program.weights.items():
        if name in names:
            *experts, rows, cols = decl.shape
            found.append(Matrix(name, weights[name].format, experts[0] if experts else 1, rows, cols))
    return found


def _cache(packs: PackStore) -> PackCache:
    return PackCache(packs.folder, packs.write, packs.max_bytes)


def _key(packs: PackStore, isa: IsaName, matrices: Sequence[Matrix]) -> PackKey:
    return PackKey(
        content=packs.content,
        recipe=packs.recipe,
        matrices=hashlib.sha256(repr(matrices).encode()).hexdigest()[:32],
        isa=isa,
        layout=layout_digest(isa, sorted({matrix.format for matrix in matrices})),
        numerics=NUMERICS_VERSION,
    )


def _map(executor: "Executor", cache: PackCache, key: PackKey, matrices: Sequence[Matrix]) -> PackedWeights | None:
    """The weights of a pack, None when there is none that can be used: why not is said."""
    path = cache.path(key)
    try:
        header = cache.find(key)
        if header is None:
            return None
        _map_data(executor, path, header)
    except PackProblem as problem:
        log.warning("the packed weights %s cannot be used: %s; packing them again", path, problem)
        return None
    cache.touch(key)
    return PackedWeights(header.num_bytes, "mapped from the pack cache", _place(executor, matrices))


def _map_data(executor: "Executor", path: Path, header: PackHeader) -> None:
    try:
        damaged = executor.map_weights(str(path), header.offset, header.num_bytes, header.digests)
    except (OSError, ValueError, RuntimeError) as error:
        raise PackProblem(f"it cannot be mapped ({error})") from error
    if damaged >= 0:
        raise PackProblem(f"it is damaged: piece {damaged} of {len(header.digests)} is not what was written")


def _place(executor: "Executor", matrices: Sequence[Matrix]) -> dict[str, int]:
    return {m.name: executor.place(m.ggml_type, m.count, m.rows, m.cols) for m in matrices}


def _pack(executor: "Executor", matrices: Sequence[Matrix], weights: Mapping[str, Weight], loading: Loading) -> PackedWeights:
    sizes = [m.count * executor.packed_bytes(m.ggml_type, m.rows, m.cols) for m in matrices]
    total, done, started = sum(sizes), 0, time.monotonic()
    try:
        executor.reserve_weights(total)
    except MemoryError as error:
        raise BackendError(
            f"the packed weights need {total / 2**20:.0f} MiB of memory, which this machine does not have"
        ) from error
    ids = _place(executor, matrices)
    for matrix, size in zip(matrices, sizes, strict=True):
        data = _with_whole_rows(weights[matrix.name].data)
        for index, rows in enumerate(data if data.ndim == 3 else [data]):
            _pack_rows(executor, ids[matrix.name], index, rows)
        done += size
        loading.progress("packing", done, total)
    return PackedWeights(total, f"packed in {time.monotonic() - started:.2f} s", ids)


def _pack_rows(executor: "Executor", weight: int, index: int, rows: Bytes) -> None:
    """Pack one matrix, a slice at a time, each of which is then given back."""
    count = max(1, _SLICE_BYTES // rows.shape[1] // _TILE_ROWS) * _TILE_ROWS
    for first in range(0, len(rows), count):
        piece = rows[first : first + count]
        executor.pack(weight, index, first, piece)
        release(piece)


def _with_whole_rows(data: Bytes) -> Bytes:
    """With the bytes of a row side by side."""
    return data if data.strides[-1] == 1 else np.ascontiguousarray(data)


def _save(executor: "Executor", cache: PackCache, key: PackKey, loading: Loading) -> Path:
    def progress(done: int, total: int) -> None:
        loading.progress("writing", done, total)

    return cache.save(key, executor.packed_data().data, executor.packed_digests(), progress)


def release(data: Bytes) -> None:
    """Give the file's pages under an array back to the operating system, if the array is a view of a read-only mapped file."""
    mapping = _mapping_of(data)
    if mapping is None or not hasattr(mapping, "madvise") or not memoryview(mapping).readonly:
        return
    whole = np.frombuffer(mapping, np.uint8)
    begin = _address(data) - _address(whole)
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (begin + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if length > 0:
        mapping.madvise(mmap.MADV_DONTNEED, first, length)


def _mapping_of(data: npt.NDArray[np.uint8]) -> mmap.mmap | None:
    base: object = data
    while True:
        if isinstance(base, mmap.mmap):
            return base
        if isinstance(base, memoryview):
            base = base.obj
        elif isinstance(base, np.ndarray):
            base = base.base
        else:
            return None


def _address(array: npt.NDArray[np.uint8]) -> int:
    return int(array.__array_interface__["data"][0])
