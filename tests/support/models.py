"""Where the real models lie, for tests marked ``real``. ``support.fetch`` puts them there."""

import os
from pathlib import Path

import pytest

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
