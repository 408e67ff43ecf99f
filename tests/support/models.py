"""Where the real models lie, for tests marked ``real``. ``support.fetch`` puts them there."""

import os
from pathlib import Path

import pytest

from tuili.library.catalogue import load_catalogue
from tuili.library.store import Manifest, Store, StoredFile

FILES = {
    "smollm2:135m": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3:270m": "gemma-3-270m-q4_k_m.gguf",
    "qwen2.5-coder:0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "qwen2.5-coder:1.5b": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
}


def directory() -> Path:
    """$TUILI_TEST_MODELS, else the cache that ``python -m support.fetch`` fills."""
    chosen = os.environ.get("TUILI_TEST_MODELS")
    return Path(chosen) if chosen else Path.home() / ".cache" / "tuili-tests" / "models"


def find(name: str) -> Path | None:
    """The file of a catalogue model, or None when it is not here."""
    path = directory() / FILES[name]
    return path if path.is_file() else None


def path(name: str) -> Path:
    """The file of a catalogue model; skips the calling test when it is not here."""
    found = find(name)
    if found is None:
        pytest.skip(f"{name} is not in {directory()}: run `PYTHONPATH=src:tests python -m support.fetch {name}`")
    return found


def store_with(home: Path, name: str) -> Path:
    """``home`` made into a TUILI_HOME that holds one catalogue model, as after a pull; the blob is a link to the test file."""
    file = path(name)
    entry = next(entry for entry in load_catalogue().entries if entry.full_name == name)
    store = Store(home)
    store.blobs.mkdir(parents=True, exist_ok=True)
    store.blob(entry.files[0].sha256).symlink_to(file)
    store.add(
        Manifest(
            name=entry.name,
            tag=entry.tag,
            title=entry.title,
            files=(StoredFile(file.name, entry.size, entry.files[0].sha256, "test cache"),),
            licence_id=entry.licence.id,
            licence_url=entry.licence.url,
            context=entry.context,
            pulled_at="2026-01-01T00:00:00Z",
        )
    )
    return home
