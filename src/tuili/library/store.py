"""Models on disk, content-addressed: ``blobs/sha256-<digest>`` hold the bytes, ``manifests/<name>/<tag>.json`` name them.

Every write is a rename, so a reader sees an old state or a new one, never half of one. A manifest is written last and removed
first: a blob without a manifest is waste, a manifest without a blob would be a lie.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tuili.errors import InvalidRequest, ModelFileError
from tuili.library.names import ModelName, parse_name

SCHEMA = 1
_CHUNK = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One blob under its human name; ``source`` is the label of where it came from."""

    name: str
    size: int
    sha256: str
    source: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One model that is here. ``accepted_at`` is when its terms were accepted (ISO 8601), where they had to be."""

    name: str
    tag: str
    title: str
    files: tuple[StoredFile, ...]
    licence_id: str
    licence_url: str
    context: int
    pulled_at: str
    accepted_at: str | None = None

    @property
    def full_name(self) -> str:
        return f"{self.name}:{self.tag}"

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class Store:
    """The folder of models under ``home``; nothing is created before something is written."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.blobs = home / "blobs"
        self.manifests = home / "manifests"

    def blob(self, sha256: str) -> Path:
        return self.blobs / f"sha256-{sha256}"

    def find(self, name: ModelName, default_tag: str | None = None) -> Manifest | None:
        """The manifest called ``name``; without a tag ``default_tag`` when it is here, else the only tag that is here."""
        here = [manifest for manifest in self.models() if manifest.name == name.name]
        tag = name.tag or default_tag
        exact = next((manifest for manifest in here if manifest.tag == tag), None)
        return here[0] if exact is None and name.tag is None and len(here) == 1 else exact

    def models(self) -> list[Manifest]:
        """Every model that is here, by name. Raises ModelFileError for a damaged manifest."""
        return sorted(self._read_all(), key=lambda manifest: (manifest.name, manifest.tag))

    def add(self, manifest: Manifest) -> None:
        """Record a model whose blobs are in place."""
        target = self.manifests / manifest.name / f"{manifest.tag}.json"
        text = json.dumps({"schema": SCHEMA, **asdict(manifest)}, indent=2, ensure_ascii=False) + "\n"
        target.parent.mkdir(parents=True, exist_ok=True)
        import tempfile

        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def remove(self, manifest: Manifest) -> int:
        """Forget a model, and delete the blobs that no other model shares. Returns the bytes freed."""
        target = self.manifests / manifest.name / f"{manifest.tag}.json"
        target.unlink(missing_ok=True)
        if not any(target.parent.iterdir()):
            target.parent.rmdir()
        shared = {file.sha256 for other in self._read_all() for file in other.files}
        return sum(self.discard_blob(file.sha256) for file in manifest.files if file.sha256 not in shared)

    def discard_blob(self, sha256: str) -> int:
        """Delete a blob and what an interrupted fetch left of it. Returns the bytes freed."""
        return _delete(self.blob(sha256)) + self.discard_partial(sha256)

    def discard_partial(self, sha256: str) -> int:
        """Delete what an interrupted fetch left of a blob. Returns the bytes freed."""
        return _delete(self.partial(sha256))

    def partial(self, sha256: str) -> Path:
        """Where the first bytes of a blob wait for the rest."""
        return partial_path(self.blob(sha256))

    def problems(self, manifest: Manifest, *, read_all: bool = False) -> list[str]:
        """What is wrong with a model's files: always their sizes, and with ``read_all`` every byte against its digest."""
        found: list[str] = []
        for file in manifest.files:
            path = self.blob(file.sha256)
            if not path.is_file():
                found.append(f"{file.name} is missing ({path})")
            elif (size := path.stat().st_size) != file.size:
                found.append(f"{file.name} has {size} bytes instead of {file.size} ({path})")
            elif read_all and (digest := sha256_of(path)) != file.sha256:
                found.append(f"{file.name} has the sha256 {digest} instead of {file.sha256} ({path})")
        return found

    def _read_all(self) -> Iterator[Manifest]:
        for path in self.manifests.glob("*/*.json"):
            try:
                name = parse_name(f"{path.parent.name}:{path.stem}")
            except InvalidRequest:
                continue
            yield _read(path, name)


def _delete(path: Path) -> int:
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size


def partial_path(target: Path) -> Path:
    """The file beside ``target`` that grows until it is whole."""
    return target.with_name(target.name + ".partial")


def sha256_of(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Hexadecimal digest of a file; ``on_bytes`` is told how far it got."""
    import hashlib

    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if on_bytes:
                on_bytes(done)
    return digest.hexdigest()


def _read(path: Path, name: ModelName) -> Manifest:
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if fields.pop("schema") != SCHEMA:
            raise ValueError(f"schema is not {SCHEMA}")
        files = tuple(StoredFile(**file) for file in fields.pop("files"))
        manifest = Manifest(files=files, **fields)
        if (manifest.name, manifest.tag) != (name.name, name.tag):
            raise ValueError("it names another model")
        if any(len(file.sha256) != 64 or not set(file.sha256) <= set("0123456789abcdef") for file in files):
            raise ValueError("a digest is malformed")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelFileError(
            f"the manifest {path} is damaged ({error}): delete it and run `tuili pull {name}`, which fetches no file twice"
        ) from error
    return manifest
