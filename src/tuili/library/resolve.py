"""From what a user typed to a file on disk."""

import os
from dataclasses import dataclass
from pathlib import Path

from tuili.errors import ModelFileError, ModelNotFound
from tuili.library.catalogue import Catalogue, CatalogueEntry, not_found
from tuili.library.names import ModelName, parse_reference
from tuili.library.store import Manifest, Store

#: Said of a path that leads nowhere: it may have been meant as the name of a repository.
ELSEWHERE = (
    "check the path, or take a name from `tuili list --all`; of any other model, download the .gguf file and give its path"
)


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model that is here. ``served_name`` is its library name, or the file's stem. ``manifest`` is None for a plain path."""

    path: Path
    served_name: str
    manifest: Manifest | None = None


@dataclass(frozen=True, slots=True)
class NotHereYet:
    """A model of the catalogue that has not been pulled."""

    entry: CatalogueEntry


def resolve(reference: str, store: Store, catalogue: Catalogue) -> ResolvedModel | NotHereYet:
    """Find a model by library name or path.

    Raises ModelNotFound (nothing of that name; the nearest are suggested), ModelFileError (a damaged blob, a folder instead of a
    file) and InvalidRequest (not a name at all).
    """
    parsed = parse_reference(reference)
    if isinstance(parsed, Path):
        return ResolvedModel(_check_file(parsed), parsed.stem)
    return _resolve_name(parsed, store, catalogue)


def _resolve_name(name: ModelName, store: Store, catalogue: Catalogue) -> ResolvedModel | NotHereYet:
    entry = catalogue.find(name)
    manifest = store.find(name, entry.tag if entry else None)
    if manifest is None:
        if entry is None:
            known = {known.full_name for known in catalogue.entries} | {here.full_name for here in store.models()}
            raise not_found(name, sorted(known), " A path to a .gguf file works too.")
        return NotHereYet(entry)
    problems = store.problems(manifest)
    if problems:
        raise ModelFileError(
            f"{manifest.full_name} is damaged: {'; '.join(problems)}. Run `tuili pull {manifest.full_name}` to repair it."
        )
    return ResolvedModel(store.blob(manifest.files[0].sha256), manifest.full_name, manifest)


def _check_file(path: Path) -> Path:
    if os.path.isdir(path):
        inside = sorted(item.name for item in path.glob("*.gguf"))
        hint = f"give one of its files: {', '.join(inside[:5])}" if inside else "and holds no .gguf file"
        raise ModelFileError(f"{path} is a folder, {hint}")
    if not os.path.exists(path):
        folder = path.parent
        near = sorted(item.name for item in folder.glob("*.gguf"))[:5] if os.path.isdir(folder) else []
        hint = f"its folder holds {', '.join(near)}" if near else ELSEWHERE
        raise ModelNotFound(f"there is no file {path}: {hint}")
    if not os.path.isfile(path):
        raise ModelFileError(f"{path} is not a regular file")
    return path
