"""The folder of packed weights: what is there is used, the least recently used goes first, and nothing but space is lost with it.

Processes need no lock to share it: a pack appears by a rename, is never changed, and stays readable for those that have mapped it
after it is deleted. A file that is being written is locked, so that what a killed process left can be told from it.
"""

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuili.backends.cpu.pack_file import (
    PackHeader,
    PackKey,
    PackProblem,
    content_prefix,
    difference,
    pack_size,
    read_header,
    write_pack,
)
from tuili.errors import CacheError

log = logging.getLogger(__name__)

#: Left free on the disk: a full one hurts more than a slow start.
SPARE_BYTES = 64 * 2**20

_ABANDONED_SECONDS = 60


@dataclass(frozen=True, slots=True)
class PackCache:
    """``write``: keep what had to be packed. ``max_bytes``: of all packs together."""

    folder: Path
    write: bool
    max_bytes: int

    def path(self, key: PackKey) -> Path:
        return self.folder / key.file_name

    def find(self, key: PackKey) -> PackHeader | None:
        """The header of the pack for ``key``, None when there is none. Raises PackProblem when what is there cannot be used."""
        try:
            header = read_header(self.path(key))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PackProblem(f"it cannot be read ({error})") from error
        reason = difference(header.key, key)
        if reason:
            raise PackProblem(reason)
        return header

    def touch(self, key: PackKey) -> None:
        """Note that a pack was used."""
        with contextlib.suppress(OSError):  # a folder that is only readable has no order
            os.utime(self.path(key))

    def save(self, key: PackKey, data: memoryview, digests: Sequence[int], progress: Callable[[int, int], None]) -> Path:
        """Write a pack. Raises CacheError: no room on the disk or under ``max_bytes``, or a folder that cannot be written."""
        target = self.path(key)
        needed = pack_size(len(data))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._discard_abandoned()
            self._make_room(needed, target)
            with self._new_file() as (file, temporary):
                write_pack(file, key, data, digests, progress)
                os.replace(temporary, target)
            _flush_folder(self.folder)
        except OSError as error:
            raise CacheError(f"the packed weights cannot be kept in {self.folder}: {_in_words(error, needed)}") from error
        return target

    def remove(self, content: str) -> int:
        """Delete the packs of a model file. Returns the bytes freed."""
        return sum(_delete(path) for path in self.folder.glob(f"{content_prefix(content)}*.pack"))

    def usage(self) -> tuple[int, int]:
        """How many packs there are, and their bytes."""
        sizes = [status.st_size for _, status in self._packs()]
        return len(sizes), sum(sizes)

    def _packs(self) -> list[tuple[Path, os.stat_result]]:
        found: list[tuple[Path, os.stat_result]] = []
        for path in self.folder.glob("*.pack"):
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                found.append((path, path.stat()))
        return sorted(found, key=lambda pack: pack[1].st_mtime_ns)

    def _make_room(self, needed: int, target: Path) -> None:
        """Under ``max_bytes`` and on the disk, at the cost of the packs that were used longest ago."""
        if needed > self.max_bytes:
            raise CacheError(
                f"the packed weights take {_mib(needed)}, and the pack cache may hold {_mib(self.max_bytes)}:"
                " raise --pack-cache-size"
            )
        others = [(path, status.st_size) for path, status in self._packs() if path != target]
        total = sum(size for _, size in others)
        if self._free() + total < needed + SPARE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        while others and (total + needed > self.max_bytes or self._free() < needed + SPARE_BYTES):
            path, size = others.pop(0)
            log.info("%s was used longest ago: it makes room in the pack cache", path.name)
            _delete(path)
            total -= size

    def _free(self) -> int:
        return shutil.disk_usage(self.folder).free

    @contextlib.contextmanager
    def _new_file(self) -> Generator[tuple[int, Path]]:
        file, name = tempfile.mkstemp(dir=self.folder, prefix=".", suffix=".tmp")
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file, Path(name)
        finally:
            Path(name).unlink(missing_ok=True)
            os.close(file)

    def _discard_abandoned(self) -> None:
        """Delete what processes left that ended while they wrote: it is not new, and nobody holds its lock."""
        for path in self.folder.glob(".*.tmp"):
            with contextlib.suppress(OSError), path.open("rb") as file:
                if time.time() - os.fstat(file.fileno()).st_mtime > _ABANDONED_SECONDS:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _delete(path: Path) -> int:
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _in_words(error: OSError, needed: int) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"there is no room for {_mib(needed)} ({error.strerror}); free some, or set TUILI_HOME to a folder on another disk"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"it cannot be written ({error.strerror}); make it writable, or set TUILI_HOME to a folder that is"
    return str(error)
