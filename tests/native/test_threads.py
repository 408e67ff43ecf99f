"""The thread pool: every chunk once, no CPU when idle, any number of starts and stops."""

import threading
import time

import pytest

from tuili import _native


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
