"""Fixtures for tests with real processes."""

import signal
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


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A shell's background jobs ignore SIGINT, and so would every process that a test starts and then interrupts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
