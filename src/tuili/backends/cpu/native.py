"""The one door to the compiled extension: is it there, does it belong to this package, what can this CPU do."""

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from tuili import __version__
from tuili.config.options import IsaName
from tuili.errors import BackendError
from tuili.quant.registry import format_of

if TYPE_CHECKING:
    from tuili._native import BoundStep as BoundStep
    from tuili._native import Executor as Executor

ISA_NAMES: tuple[IsaName, ...] = ("generic", "avx2", "avx512")

_REBUILD = "build it with `pip install .` (in a clone: `make setup`), or use the slow --backend reference"


def extension():
    """The extension module; raises BackendError, saying how to build it, when it is missing or of another version."""
    try:
        from tuili import _native
    except ImportError as error:
        raise BackendError(f"the native CPU backend cannot be loaded ({error}); {_REBUILD}") from error
    _check_version(_native.__version__)
    return _native


def _check_version(built: str) -> None:
    """A build of a source tree by CMake alone has no version."""
    if built not in ("", __version__):
        raise BackendError(f"the native CPU backend was built for tuili {built}, but this is tuili {__version__}; {_REBUILD}")


def best_isa() -> IsaName:
    """The best level of this CPU."""
    return ISA_NAMES[extension().best_isa()]


def usable_cpus() -> int:
    """CPUs of this process's affinity mask, within its cgroup's quota."""
    return extension().usable_cpus()


def isa_level(name: IsaName | None) -> int:
    """The number of a level, of the best one for None; raises BackendError for one that this CPU lacks."""
    best = extension().best_isa()
    if name is None:
        return best
    level = ISA_NAMES.index(name)
    if level > best:
        possible = ", ".join(ISA_NAMES[: best + 1])
        raise BackendError(f"isa {name} was asked for, but this CPU can run {possible}; leave it out to take the best")
    return level


def layout_digest(isa: IsaName, formats: Iterable[str]) -> str:
    """Names how a level packs these formats: a digest of what becomes of the same rows. It cannot be forgotten when a layout
    changes, as a version number can. 17 rows of three blocks: whole tiles and blocks, and left-over ones."""
    packed = [_packed_sample(ISA_NAMES.index(isa), name) for name in formats]
    return f"{extension().xxh64(b''.join(packed)):016x}"


def _packed_sample(level: int, name: str) -> bytes:
    fmt = format_of(name)
    cols = 3 * max(fmt.block_size, 32)
    rows = np.frombuffer(hashlib.shake_128(name.encode()).digest(17 * fmt.row_bytes(cols)), np.uint8)
    return extension().pack_rows(level, fmt.ggml_type, rows.reshape(17, -1), cols)
