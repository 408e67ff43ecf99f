"""Fixtures for tests with real processes."""

from pathlib import Path

import pytest

from support import program
from support.tiny_model import write_tiny_model


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """For a program with a home folder of its own."""
    return program.environment(tmp_path / "home")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A model file with a context of 64 tokens."""
    return write_tiny_model(tmp_path / "tiny.gguf", context=64)
