"""``tuili pull`` from end to end: a toy catalogue, a hub on the loopback interface, real disks that are full."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hub import serving
from support.library import TERMS, content, entry, model_file
from tuili.cli.main import run
from tuili.library.catalogue import Catalogue
from tuili.library.store import Store, partial_path

DATA = content(400_000)


@pytest.fixture(autouse=True)
def toy_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = Catalogue((entry(model_file(DATA)), entry(model_file(DATA), TERMS, name="gated")))
    for module in ("models", "pull", "show", "rm", "list"):
        monkeypatch.setattr(f"tuili.cli.{module}.load_catalogue", lambda: catalogue)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUILI_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with serving(DATA) as state:
        monkeypatch.setenv("TUILI_HF_ENDPOINT", state.address)
        yield


def test_pull_then_list_then_rm(hub: None, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pull", "toy"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "toy:1b is ready: tuili run toy:1b\n"
    assert "licence: Apache License 2.0 (Apache-2.0): free to use." in captured.err
    assert run(["pull", "toy", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert run(["show", "toy", "--verify"]) == 0
    assert run(["rm", "toy"]) == 0
    assert list(Store(home).blobs.iterdir()) == []


def test_terms_are_accepted_once(hub: None, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pull", "gated"]) == 1
    assert "--accept-licence" in capsys.readouterr().err
    assert run(["pull", "gated", "--accept-licence"]) == 0
    assert run(["pull", "gated"]) == 0


def test_an_unreachable_hub_says_so_and_keeps_what_is_here(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUILI_HF_ENDPOINT", "http://127.0.0.1:1")
    blob = Store(home).blob(model_file(DATA).sha256)
    blob.parent.mkdir(parents=True)
    partial_path(blob).write_bytes(DATA[:1000])
    assert run(["pull", "toy"]) == 1
    error = capsys.readouterr().err
    assert "http://127.0.0.1:1" in error and "1000 bytes are kept; the same command continues from there" in error


def test_a_full_disk_is_said_before_anything_is_fetched(
    hub: None, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tuili.library.pull.SPARE_BYTES", 10**18)
    assert run(["pull", "toy"]) == 1
    error = capsys.readouterr().err
    assert "the disk is too full for model.gguf: 1000000000000 MB are needed" in error and "TUILI_HOME" in error
    assert "fetching from" not in error


def test_a_disk_that_fills_on_the_way(
    tmp_path: Path, hub: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real file system of 200 kB: the error is the kernel's own."""
    mount = tmp_path / "small"
    mount.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", mount], capture_output=True).returncode
    ):
        pytest.skip("needs the right to mount a small file system")
    try:
        monkeypatch.setenv("TUILI_HOME", str(mount / "home"))
        monkeypatch.setattr("tuili.library.pull.SPARE_BYTES", -(10**9))
        assert run(["pull", "toy"]) == 1
        error = capsys.readouterr().err
        assert "the disk is too full for model.gguf" in error and "what was fetched is kept" in error
        assert os.strerror(errno.ENOSPC) not in error
    finally:
        subprocess.run(["umount", mount], check=True)
