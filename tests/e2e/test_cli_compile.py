"""Packing ahead of time, as a user meets it: what is said, what is made again, what is refused."""

import json
import os
import resource
import subprocess
from pathlib import Path

import pytest

from support.program import COMMAND, refused, tuili

PROMPT = ("hi", "--raw", "--temperature", "0", "--max-tokens", "4", "--verbose")


def pack_of(environment: dict[str, str]) -> Path:
    (path,) = (Path(environment["TUILI_HOME"]) / "cache" / "pack").glob("*.pack")
    return path


def run(environment: dict[str, str], tiny: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    done = tuili(environment, "run", str(tiny), *PROMPT, *flags)
    assert done.returncode == 0, done.stderr
    return done


def test_compile_then_run(environment: dict[str, str], tiny: Path) -> None:
    plain = run(environment, tiny)
    assert "packed in" in plain.stderr and not (Path(environment["TUILI_HOME"]) / "cache" / "pack").exists()
    done = tuili(environment, "compile", str(tiny), "--json")
    found = json.loads(done.stdout)
    assert found == {"model": "tiny", "path": str(pack_of(environment)), "size": pack_of(environment).stat().st_size, "new": True}
    mapped = run(environment, tiny)
    assert "from the pack cache" in mapped.stderr and mapped.stdout == plain.stdout
    assert "packed already" in tuili(environment, "compile", str(tiny)).stdout


def test_run_keeps_what_it_packed_when_asked(environment: dict[str, str], tiny: Path) -> None:
    assert "packed in" in run(environment, tiny, "--pack-cache").stderr
    assert "from the pack cache" in run(environment, tiny).stderr
    assert "from the pack cache" in run({**environment, "TUILI_PACK_CACHE": "true"}, tiny).stderr


def test_a_damaged_pack_is_made_again(environment: dict[str, str], tiny: Path) -> None:
    tuili(environment, "compile", str(tiny))
    path = pack_of(environment)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-5000] + bytes([whole[-5000] ^ 1]) + whole[-4999:]):
        path.write_bytes(damaged)
        done = run(environment, tiny)
        assert "cannot be used" in done.stderr and "packing them again" in done.stderr
        assert path.read_bytes() == whole
    path.write_bytes(whole[:100])
    assert tuili(environment, "run", str(tiny), "hi", "--raw", "--max-tokens", "4", "--quiet").stderr == ""


def test_a_changed_model_file_is_packed_again(environment: dict[str, str], tiny: Path) -> None:
    tuili(environment, "compile", str(tiny))
    os.utime(tiny)
    assert "packed in" in run(environment, tiny).stderr


def test_a_disk_without_room_is_said(environment: dict[str, str], tiny: Path) -> None:
    """A limit on the size of files fails as a full disk does. Compiling is refused; running goes on without."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))

    command = [*COMMAND, "compile", str(tiny)]
    done = subprocess.run(command, env=environment, preexec_fn=limit, capture_output=True, text=True, timeout=120)
    refused(done, "no room", "TUILI_HOME")
    assert list((Path(environment["TUILI_HOME"]) / "cache" / "pack").iterdir()) == []
    command = [*COMMAND, "run", str(tiny), *PROMPT, "--pack-cache"]
    done = subprocess.run(
        command,
        env=environment,
        preexec_fn=limit,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "no room" in done.stderr and done.stdout


def test_what_cannot_be_compiled(environment: dict[str, str], tiny: Path) -> None:
    refused(tuili(environment, "compile", "no-such-model"), "no-such-model")
    refused(tuili(environment, "compile", str(tiny), "--isa", "sse9"), "--isa", "avx2")
    refused(tuili(environment, "compile", str(tiny), "--pack-cache-size", "1000"), "--pack-cache-size")
    refused(tuili(environment, "run", str(tiny), *PROMPT, "--backend", "reference", "--pack-cache"), "pack_cache", "reference")


@pytest.mark.skipif("avx512_vnni" in Path("/proc/cpuinfo").read_text(), reason="this processor has every level")
def test_a_level_that_this_processor_lacks(environment: dict[str, str], tiny: Path) -> None:
    refused(tuili(environment, "compile", str(tiny), "--isa", "avx512"), "avx512", "this CPU can run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(environment: dict[str, str], tiny: Path) -> None:
    folder = Path(environment["TUILI_HOME"]) / "cache" / "pack"
    folder.mkdir(parents=True)
    folder.chmod(0o500)
    refused(tuili(environment, "compile", str(tiny)), "cannot be written", "TUILI_HOME")
