"""The thread pool: every chunk once, no CPU when idle, any number of starts and stops."""

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from support.tiny_engine import tiny_engine
from tuili import SamplingParams, _native
from tuili.backends.cpu.executor import CpuBackend
from tuili.backends.select import select_backend
from tuili.config.options import EngineOptions
from tuili.engine.llm import LLM
from tuili.errors import ConfigError

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_waiting_threads_fetch_what_is_read_next(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    program = tmp_path / "read_ahead"
    sources = [Path(__file__).parent / "read_ahead.cpp", ROOT / "native" / "threads" / "read_ahead.cpp"]
    subprocess.run([compiler, "-std=c++20", "-pthread", f"-I{ROOT / 'native'}", *map(str, sources), "-o", program], check=True)
    result = subprocess.run([program], capture_output=True, text=True, check=False)
    assert result.stdout == "as expected\n"


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_chunk_runs_once(threads: int) -> None:
    pool = _native.ThreadPool(threads)
    for count in (0, 1, 2, 7, 64, 1000, 70_000):  # above 65,535 a job is cut into batches
        assert pool.sum_chunks(count) == count * (count + 1) // 2


def test_many_short_jobs() -> None:
    pool = _native.ThreadPool(4)
    for count in range(3000):
        assert pool.sum_chunks(count % 9) == (count % 9) * (count % 9 + 1) // 2


def test_many_starts_and_stops() -> None:
    for threads in range(1, 60):
        pool = _native.ThreadPool(threads % 5 + 1)
        if threads % 2:
            assert pool.sum_chunks(10) == 55
        del pool
    assert threading.active_count() < 50


def test_an_idle_pool_uses_no_cpu() -> None:
    pool = _native.ThreadPool(4)
    pool.sum_chunks(100)
    time.sleep(0.1)  # workers spin for a moment after a job
    before = time.process_time()
    time.sleep(0.4)
    assert time.process_time() - before < 0.02
    assert pool.sum_chunks(100) == 5050


def test_usable_cpus_is_at_least_one() -> None:
    assert 1 <= _native.usable_cpus() <= 4096


def cpus_of_threads() -> dict[int, set[int]]:
    return {int(task.name): os.sched_getaffinity(int(task.name)) for task in Path("/proc/self/task").iterdir()}


def test_threads_are_bound_to_their_cpus() -> None:
    """Each worker to its own, the caller to the first during steps only: it is not ours."""
    allowed = sorted(os.sched_getaffinity(0))
    cpus = allowed[::-1][:2]
    before = cpus_of_threads()
    llm = LLM(tiny_engine("llama", CpuBackend(cpus=cpus), EngineOptions(max_model_len=64)))
    workers = [where for task, where in cpus_of_threads().items() if task not in before]
    assert workers == [{cpu} for cpu in cpus[1:]]
    assert f"bound to CPUs {', '.join(map(str, cpus))}" in llm.loaded.report["threads"]
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    bound = llm.generate([[1, 2, 3]], params)[0].outputs[0].token_ids
    assert os.sched_getaffinity(0) == set(allowed)
    free = LLM(tiny_engine("llama", CpuBackend(threads=1), EngineOptions(max_model_len=64)))
    assert free.generate([[1, 2, 3]], params)[0].outputs[0].token_ids == bound


def test_cpus_that_cannot_be_had() -> None:
    (first, *_) = os.sched_getaffinity(0)
    with pytest.raises(ConfigError, match=r"names CPU 60000, but this process may run on .* only"):
        CpuBackend(cpus=(first, 60000))
    with pytest.raises(ConfigError, match="2 threads do not go on the 1 CPUs"):
        CpuBackend(threads=2, cpus=(first,))
    with pytest.raises(ConfigError, match="needs --backend cpu"):
        select_backend("reference", cpus=(0,))
