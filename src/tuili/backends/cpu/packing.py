"""Weights into native memory: matrices packed into one arena, vectors as float32.

Packing reads the model file once and doubles nothing: pages of the file are given back as soon as their matrix is packed.
"""

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tuili.backends.cpu.lower import matrices_of
from tuili.errors import BackendError
from tuili.program.program import Program
from tuili.quant.format import Bytes
from tuili.quant.registry import format_of
from tuili.weights.source import Weight

if TYPE_CHECKING:
    from tuili.backends.cpu.native import Executor

#: Ops whose weights (or the matrices among them) are packed; all other weights are vectors.
MATRIX_READERS = frozenset({"embed", "linear", "gate_up_act", "moe_linear"})


@dataclass(slots=True)
class PackedWeights:
    """Native ids by weight name. ``num_bytes`` of the packed matrices."""

    num_bytes: int
    matrices: dict[str, int] = field(default_factory=dict[str, int])
    vectors: dict[str, int] = field(default_factory=dict[str, int])


def matrix_names(program: Program) -> set[str]:
    """Weights that are matrices. A tied embedding is one matrix that two instructions name."""
    return {name for instr in program.instrs if instr.op in MATRIX_READERS for name in matrices_of(instr)}


def pack_weights(
    executor: "Executor", program: Program, weights: Mapping[str, Weight], formats: Mapping[str, str]
) -> PackedWeights:
    """``formats``: weight name -> format name. Raises BackendError when the matrices do not fit in memory."""
    matrices = matrix_names(program)
    total = sum(_packed_bytes(executor, program.weights[name].shape, formats[name]) for name in matrices)
    try:
        executor.reserve_weights(total)
    except MemoryError as error:
        raise BackendError(
            f"the packed weights need {total / 2**20:.0f} MiB of memory, which this machine does not have"
        ) from error
    packed = PackedWeights(total)
    for name in program.weights:
        weight = weights[name]
        if name in matrices:
            packed.matrices[name] = _pack(executor, weight)
        else:
            values = format_of(weight.format).decode(weight.data).reshape(-1)
            packed.vectors[name] = executor.add_vector(np.ascontiguousarray(values, np.float32))
        _release(weight.data)
    return packed


def _packed_bytes(executor: "Executor", shape: tuple[int, ...], fmt: str) -> int:
    *experts, rows, cols = shape
    return (experts[0] if experts else 1) * executor.packed_bytes(format_of(fmt).ggml_type, rows, cols)


def _pack(executor: "Executor", weight: Weight) -> int:
    data = weight.data
    if data.strides[-1] != 1:
        data = np.ascontiguousarray(data)
    matrices = list(data) if len(weight.shape) == 3 else [data]
    return executor.pack(format_of(weight.format).ggml_type, matrices, weight.shape[-1])


def _release(data: Bytes) -> None:
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
