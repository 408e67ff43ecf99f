"""The real program with real models: the first answer of a newcomer, and what it costs in memory."""

import json
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from support import models
from support.program import COMMAND, tuili
from support.server import server_process

MIB = 2**20
WORDS = ["river", "stone", "copper", "window", "ladder", "orange", "planet", "market", "silent", "engine", "harbour"]


@pytest.mark.real
def test_the_capital_of_france(environment: dict[str, str]) -> None:
    question = "What is the capital of France? Answer in one sentence."
    done = tuili(environment, "run", str(models.path("smollm2:135m")), question, "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


@pytest.mark.real
def test_a_base_model_continues_a_sentence(environment: dict[str, str]) -> None:
    model = str(models.path("gemma3:270m"))
    done = tuili(environment, "run", model, "The Eiffel Tower is in the city of", "--temperature", "0", "--max-tokens", "8")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert done.stderr.count("no chat template") == 1


@pytest.mark.real
def test_piped_code_is_explained_with_a_fixed_seed(environment: dict[str, str], tmp_path: Path) -> None:
    """Same seed, same answer, whatever the process; the prompt comes from the command line and from a pipe."""
    code = tmp_path / "code.py"
    code.write_text("def add(a, b):\n    return a + b\n")
    model = str(models.path("qwen2.5-coder:0.5b"))
    command = [*COMMAND, "run", model, "What does this function do?", "--seed", "7", "--max-tokens", "24"]
    answers: list[str] = []
    for _ in range(2):
        with code.open() as stdin:
            done = subprocess.run(command, env=environment, stdin=stdin, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout)
    assert answers[0] == answers[1] and "add" in answers[0].lower()


#: Runs a command and says its peak memory in KiB. By itself: Linux counts what the parent had at the start as the child's.
PEAK_OF = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:])
_, status, usage = os.wait4(process.pid, 0)
print(usage.ru_maxrss, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.real
@pytest.mark.parametrize("name", ["smollm2:135m", "gemma3:270m", "qwen2.5-coder:0.5b"])
def test_memory_of_a_short_answer(environment: dict[str, str], name: str) -> None:
    """Peak memory is at most 1.15 × the file + the KV budget + 250 MB, once the tokenizer is cached."""
    model, budget = models.path(name), 64 * MIB
    flags = ("--max-tokens", "1", "--kv-cache-memory-bytes", str(budget))
    command = [sys.executable, "-c", PEAK_OF, *COMMAND, "run", str(model), "hi", *flags]
    for _ in range(2):
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    peak = int(done.stderr.split()[-1]) * 1024
    assert 0.5 * model.stat().st_size < peak <= 1.15 * model.stat().st_size + budget + 250e6


@pytest.mark.real
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_a_server_under_load() -> None:
    """The 0.5B, whose embedding stays in the file: peak memory is at most the file + the KV budget + 125 MB."""
    model, budget = models.path("qwen2.5-coder:0.5b"), 16 * MIB
    flags = ("--port", "0", "--max-model-len", "512", "--kv-cache-memory-bytes", str(budget))
    with server_process("tuili", "serve", str(model), *flags) as server:
        server.wait_until_ready()
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0, timeout=100)
        prompts = [" ".join(random.Random(seed).choices(WORDS, k=150)) for seed in range(8)]
        with ThreadPoolExecutor(4) as clients:
            list(clients.map(lambda p: client.completions.create(model=model.stem, prompt=p, max_tokens=8), prompts))
        status = Path(f"/proc/{server.process.pid}/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]
    assert peak <= model.stat().st_size + budget + 125e6


def test_doctor_names_the_backend(environment: dict[str, str]) -> None:
    done = tuili(environment, "doctor", "--json")
    found = json.loads(done.stdout)
    assert found["processor"]["processors"] >= 1 and found["memory"]["total_bytes"] > 10**8
    assert found["disk"]["free_bytes"] > 0 and found["models"]["here"] == []
    assert done.returncode == (0 if found["usable"] else 1)
    if found["usable"]:
        assert found["backend"]["would_run"] == "cpu"
    else:
        assert "make setup" in found["backend"]["why"] and any("make setup" in line for line in found["advice"])
    assert tuili(environment, "doctor").stdout.startswith("software")


def test_doctor_with_a_level_this_processor_lacks(environment: dict[str, str]) -> None:
    levels = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if "avx512_vnni" in levels:
        pytest.skip("this processor has every level")
    done = tuili({**environment, "TUILI_ISA": "avx512"}, "doctor")
    assert done.returncode == 1
    assert "avx512" in done.stdout and "No backend can run here" in done.stdout
