"""Small models made of random bytes, fake sources and a report that remembers, for tests of the library."""

import hashlib
import itertools
import random
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tuili.errors import DownloadError
from tuili.library.catalogue import CatalogueEntry, HuggingFaceSource, Licence, ModelFile, PackagePart, PackageSource, Source
from tuili.library.pull import Fetchers
from tuili.library.sources.base import Report

FREE = Licence("Apache-2.0", "Apache License 2.0", "https://www.apache.org/licenses/LICENSE-2.0", "free to use.")
TERMS = Licence(
    "LicenseRef-Gemma", "Gemma Terms of Use", "https://ai.google.dev/gemma/terms", "with conditions.", must_accept=True
)
HUB = HuggingFaceSource("owner/repo", "model.gguf")


def content(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def model_file(data: bytes, *sources: Source, name: str = "model.gguf") -> ModelFile:
    return ModelFile(name, len(data), hashlib.sha256(data).hexdigest(), sources or (HUB,))


def entry(file: ModelFile, licence: Licence = FREE, name: str = "toy", tag: str = "1b") -> CatalogueEntry:
    return CatalogueEntry(name, tag, "Toy 1B", "1B", 128, True, licence, (file,), default=True)


def wheel(folder: Path, package: str, version: str, members: dict[str, bytes]) -> Path:
    """A wheel as pip accepts it for download: metadata and some members."""
    stem = f"{package.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    path = folder / f"{stem}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def in_wheels(folder: Path, data: bytes, cuts: list[int]) -> PackageSource:
    """Slice ``data`` at ``cuts`` into wheels toy-part1, toy-part2, … of a folder that pip can use with --find-links."""
    bounds = [0, *cuts, len(data)]
    parts: list[PackagePart] = []
    for number, (start, end) in enumerate(itertools.pairwise(bounds), 1):
        member = f"toy_part{number}/data/part{number:02d}.bin"
        wheel(folder, f"toy-part{number}", "1.0", {member: data[start:end]})
        parts.append(PackagePart(f"toy-part{number}", "1.0", member, end - start))
    return PackageSource(tuple(parts))


@dataclass
class Recorder:
    """A report that remembers."""

    lines: list[str] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)

    def status(self, message: str) -> None:
        self.lines.append(message)

    def progress(self, done: int, total: int) -> None:
        self.steps.append((done, total))

    def said(self, text: str) -> bool:
        return any(text in line for line in self.lines)


@dataclass
class ScriptedFetcher:
    """Serves ``data``; each call ends as ``script`` says: None is good, a number breaks after that many bytes, text refuses."""

    data: bytes
    script: list[int | str | None] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    chunk: int = 1000

    def stream(self, source: object, file: ModelFile, offset: int, report: Report) -> Iterator[bytes]:
        self.offsets.append(offset)
        ending = self.script.pop(0) if self.script else None
        if isinstance(ending, str):
            raise DownloadError(ending)
        end = len(self.data) if ending is None else min(len(self.data), offset + ending)
        for start in range(offset, end, self.chunk):
            yield self.data[start : min(start + self.chunk, end)]
        if ending is not None:
            raise DownloadError("the line went dead")


def fetchers(hub: ScriptedFetcher, package: ScriptedFetcher | None = None, free: int = 10**12) -> Fetchers:
    return Fetchers(hub, package or ScriptedFetcher(b"", ["no such package"]), lambda _: free)
