"""Wrong input to the real program, in its own process: one clear block, an exit code, never a traceback."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hub import serving
from support.library import content, model_file
from support.program import refused, tuili
from support.tiny_model import write_tiny_model
from tuili.library.store import Store

PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452") + bytes(1000)


def test_the_tiny_model_runs(environment: dict[str, str], tiny: Path) -> None:
    """What the other tests break works when it is not broken."""
    done = tuili(environment, "run", str(tiny), "hello", "--backend", "reference", "--max-tokens", "4", "--seed", "1", "-v")
    assert done.returncode == 0, done.stderr
    assert "generated  " in done.stderr
    again = tuili(environment, "run", str(tiny), "hello", "--backend", "reference", "--max-tokens", "4", "--seed", "1")
    assert again.stdout == done.stdout


def test_a_missing_file(environment: dict[str, str], tiny: Path) -> None:
    refused(tuili(environment, "run", str(tiny.parent / "tinny.gguf"), "hi"), "there is no file", "holds tiny.gguf")


def test_a_picture_that_calls_itself_a_model(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "photo.gguf").write_bytes(PNG)
    refused(tuili(environment, "run", str(tmp_path / "photo.gguf"), "hi", "--backend", "reference"), "photo.gguf", "GGUF")
    (tmp_path / "empty.gguf").write_bytes(b"")
    refused(tuili(environment, "run", str(tmp_path / "empty.gguf"), "hi", "--backend", "reference"), "empty.gguf")
    refused(tuili(environment, "inspect", str(tmp_path / "photo.gguf")), "photo.gguf", "GGUF")


def test_an_unknown_architecture(environment: dict[str, str], tmp_path: Path) -> None:
    """D-GGUF-2: the architecture is named, and the known ones are."""
    path = write_tiny_model(tmp_path / "odd.gguf", architecture="mystery")
    refused(tuili(environment, "run", str(path), "hi", "--backend", "reference"), "mystery", "llama", "qwen2")


def test_a_truncated_file(environment: dict[str, str], tiny: Path) -> None:
    """D-GGUF-1: a file that was cut off is named."""
    tiny.write_bytes(tiny.read_bytes()[:-1])
    refused(tuili(environment, "run", str(tiny), "hi", "--backend", "reference"), "tiny.gguf")


def test_a_prompt_longer_than_the_context(environment: dict[str, str], tiny: Path) -> None:
    done = tuili(environment, "run", str(tiny), "x" * 100, "--raw", "--backend", "reference")
    refused(done, "100", "64")


def test_a_context_longer_than_the_model_can(environment: dict[str, str], tiny: Path) -> None:
    done = tuili(environment, "run", str(tiny), "hi", "--max-model-len", "1000", "--backend", "reference")
    refused(done, "max_model_len is 1000", "64")


def test_values_out_of_range(environment: dict[str, str], tiny: Path) -> None:
    refused(tuili(environment, "run", str(tiny), "hi", "--max-tokens", "-1"), "--max-tokens", "-1", code=2)
    refused(tuili(environment, "run", str(tiny), "hi", "--backend", "abacus"), "--backend is 'abacus'", "reference")
    refused(tuili(environment, "run", str(tiny), "hi", "--cpu-list", "1-0"), "--cpu-list is '1-0'", "0,2-3")
    refused(tuili(environment, "run", str(tiny), "hi", "--cpu-list", "60000"), "names CPU 60000", "may run on")
    done = tuili(environment, "run", str(tiny), "hi", "--kv-cache-memory-bytes", "10", "--backend", "reference")
    refused(done, "kv_cache_memory_bytes is 10")


def test_an_unknown_model(environment: dict[str, str]) -> None:
    refused(tuili(environment, "run", "smollm2:1.7b", "hi"), "no model is called 'smollm2:1.7b'", "smollm2:135m")


DATA = content(3_000_000)
PULL = """
import tuili.cli.models, tuili.cli.pull
from support.library import content, entry, model_file
from tuili.library.catalogue import Catalogue
catalogue = Catalogue((entry(model_file(content(3_000_000))),))
tuili.cli.models.load_catalogue = tuili.cli.pull.load_catalogue = lambda: catalogue
from tuili.cli.main import main
main(["pull", "toy"])
"""


@pytest.fixture
def slow_hub(environment: dict[str, str]) -> Iterator[None]:
    with serving(DATA) as hub:
        hub.pause_after = 1_000_000
        environment["TUILI_HF_ENDPOINT"] = hub.address
        yield


def test_control_c_during_a_pull_and_then_the_same_again(environment: dict[str, str], slow_hub: None, tmp_path: Path) -> None:
    store = Store(tmp_path / "home")
    partial = store.partial(model_file(DATA).sha256)
    process = subprocess.Popen([sys.executable, "-c", PULL], env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (partial.exists() and partial.stat().st_size > 500_000) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in error
    kept = partial.stat().st_size
    assert 500_000 < kept <= 1_000_000
    done = subprocess.run([sys.executable, "-c", PULL], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"continuing model.gguf at byte {kept} of 3000000" in done.stderr
    assert store.blob(model_file(DATA).sha256).read_bytes() == DATA
