"""A file of packed weights: what it was made from and for, a digest of every piece, then the bytes as they lie in memory.

    [8] magic  [8] length of the header, little-endian  [32] sha256 of the header  [..] header, JSON
    zeros up to a multiple of 4096, the packed weights, 4096 zeros

It is mapped, not parsed: nothing of it is used before the header's sha256 and the XXH64 of every 2 MiB agree.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tuili import __version__

MAGIC = b"TUILIPK1"
PAGE = 4096
_FIXED = len(MAGIC) + 8 + 32
_LONGEST_HEADER = 1 << 30
#: Written at a time, up to multiples of it: file systems that can keep huge pages in their cache make them of such pieces.
_PIECE = 8 << 20


class PackProblem(Exception):
    """Why a pack cannot be used, in words."""


@dataclass(frozen=True, slots=True)
class PackKey:
    """What packed weights depend on. ``content``: of the model file; ``recipe``: how its tensors become the program's weights;
    ``matrices``: their names, formats and shapes; ``layout``: of the ISA level's kernels."""

    content: str
    recipe: str
    matrices: str
    isa: str
    layout: str
    numerics: int
    rank: int = 0
    world: int = 1

    @property
    def file_name(self) -> str:
        """One place for each model, level and rank: what another version left there is found, said and replaced."""
        return f"{content_prefix(self.content)}{self.isa}-{self.rank}of{self.world}.pack"


def content_prefix(content: str) -> str:
    """How the names of all packs of a model file begin."""
    return f"{hashlib.sha256(content.encode()).hexdigest()[:32]}-"


@dataclass(frozen=True, slots=True)
class PackHeader:
    """``offset``: where the packed weights begin; ``digests``: XXH64 of every 2 MiB of them."""

    key: PackKey
    num_bytes: int
    offset: int
    digests: tuple[int, ...]


def write_pack(
    file: int,
    key: PackKey,
    data: memoryview,
    digests: Sequence[int],
    progress: Callable[[int, int], None],
) -> None:
    """Write a whole pack to a new file and flush it to the disk. Raises OSError."""
    header = {"made_by": __version__, "key": asdict(key), "num_bytes": len(data)}
    text = json.dumps({**header, "digests": "".join(f"{digest:016x}" for digest in digests)}).encode()
    head = MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text
    offset = _data_offset(len(text))
    _write(file, memoryview(head.ljust(offset, b"\0")))
    done = 0
    while done < len(data):
        piece = _PIECE - (offset + done) % _PIECE
        _write(file, data[done : done + piece])
        done = min(done + piece, len(data))
        progress(done, len(data))
    _write(file, memoryview(bytes(PAGE)))
    os.fsync(file)


def read_header(path: Path) -> PackHeader:
    """The header of a pack. Raises PackProblem for a damaged or foreign file, OSError (FileNotFoundError when there is none)."""
    with path.open("rb") as file:
        fixed = file.read(_FIXED)
        if len(fixed) < _FIXED or not fixed.startswith(MAGIC):
            raise PackProblem("it is not a file of packed weights of this version")
        length = int.from_bytes(fixed[8:16], "little")
        text = file.read(length) if length <= _LONGEST_HEADER else b""
        size = os.fstat(file.fileno()).st_size
    if hashlib.sha256(text).digest() != fixed[16:]:
        raise PackProblem("its header is damaged")
    fields: dict[str, Any] = json.loads(text)
    hexadecimal: str = fields["digests"]
    digests = tuple(int(hexadecimal[i : i + 16], 16) for i in range(0, len(hexadecimal), 16))
    header = PackHeader(PackKey(**fields["key"]), fields["num_bytes"], _data_offset(length), digests)
    expected = header.offset + header.num_bytes + PAGE
    if size != expected:
        raise PackProblem(f"it has {size} bytes instead of {expected}")
    return header


def difference(found: PackKey, wanted: PackKey) -> str | None:
    """In words, why weights packed for ``found`` are not those of ``wanted``; None when they are."""
    words = {
        "content": "from another file, or the file has changed since",
        "recipe": "by a version that reads the model file in another way",
        "matrices": "for another set of weights",
        "isa": f"for {found.isa}, not for {wanted.isa}",
        "layout": "in a layout that the kernels no longer read",
        "numerics": f"for numerics version {found.numerics}; this is version {wanted.numerics}",
        "rank": f"for rank {found.rank}, not for rank {wanted.rank}",
        "world": f"for {found.world} ranks, not for {wanted.world}",
    }
    reasons = [why for name, why in words.items() if getattr(found, name) != getattr(wanted, name)]
    return f"it was packed {' and '.join(reasons)}" if reasons else None


def pack_size(num_bytes: int) -> int:
    """About what a pack of that many bytes takes on the disk, never less."""
    return num_bytes + 2 * PAGE + num_bytes // (2 << 20) * 16 + 16 * 1024


def _data_offset(header_bytes: int) -> int:
    return -(-(_FIXED + header_bytes) // PAGE) * PAGE


def _write(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]
