"""The law of batch invariance, to the bit, on the native backend: a request's tokens and log-probabilities do not depend on who
shares its batch, on chunk sizes, threads or preemptions; on every ISA level of this machine."""

import random
from collections.abc import Iterator

import pytest

from support import models
from support.tiny_engine import MACHINE, Workload, mixed_workload, tiny_engine
from tuili.config.options import EngineOptions, IsaName
from tuili.engine.build import LoadedEngine, build_engine
from tuili.engine.llm import GenerationResult
from tuili.models.registry import architectures

pytest.importorskip("tuili._native", reason="the native extension is not built")

from tuili.backends.cpu.executor import CpuBackend
from tuili.backends.cpu.native import best_isa

LEVELS: tuple[IsaName, ...] = ("generic", "avx2", "avx512")
AVAILABLE = LEVELS[: LEVELS.index(best_isa()) + 1]


def workload(count: int, vocab_size: int, longest: int, max_tokens: int) -> Workload:
    rng = random.Random(17)
    lengths = [1, 2, 15, 16, 17, longest] + [rng.randrange(1, longest) for _ in range(count - 6)]
    return mixed_workload([[rng.randrange(vocab_size) for _ in range(length)] for length in lengths], max_tokens)


def assert_same(got: list[GenerationResult], expected: list[GenerationResult]) -> None:
    """Bit for bit: tokens, text, log-probabilities, usage."""
    for i, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        assert ours == theirs, f"request {i} differs"


# Tiny models of every architecture.

TINY = workload(12, 260, 70, 30)


def tiny(architecture: str, isa: IsaName, threads: int = 2, **options: int) -> LoadedEngine:
    backend = CpuBackend(isa=isa, threads=threads)
    return tiny_engine(architecture, backend, EngineOptions(max_model_len=112, **options), _format)


def _format(name: str, shape: tuple[int, ...]) -> str:
    """Quantised where the rows allow it."""
    return "Q8_0" if shape[-1] % 32 == 0 and "down" in name else "Q4_0" if shape[-1] % 32 == 0 else "F16"


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("architecture", sorted(architectures()))
def test_tiny_models(architecture: str, isa: IsaName) -> None:
    expected = TINY.run_alone(tiny(architecture, isa))
    budget = tiny(architecture, isa, max_num_seqs=1).resolved.kv_cache_memory_bytes
    assert_same(TINY.run(tiny(architecture, isa)), expected)
    assert_same(TINY.run(tiny(architecture, isa, threads=1, max_num_batched_tokens=16)), expected)
    small = tiny(architecture, isa, kv_cache_memory_bytes=budget, max_num_batched_tokens=64)
    assert_same(TINY.run(small), expected)
    assert small.engine.scheduler.num_preemptions > 0


# SmolLM2: 24 mixed requests; short ones where the level is slow.

REAL = workload(24, 49152, 200, 16)
SHORT = workload(24, 49152, 18, 4)


def real_workload(isa: IsaName) -> Workload:
    return SHORT if isa == "generic" else REAL


def load(isa: IsaName, threads: int = 2, chunk: int = 512, kv_bytes: int = 2**28) -> LoadedEngine:
    options = EngineOptions(
        backend="cpu",
        isa=isa,
        threads=threads,
        max_model_len=512,
        max_num_batched_tokens=chunk,
        kv_cache_memory_bytes=kv_bytes,
    )
    return build_engine(models.path("smollm2:135m"), options, machine=MACHINE)


def levels() -> Iterator[object]:
    """The best level in full; the others are slow and run in the longer suite."""
    for isa in AVAILABLE:
        yield pytest.param(isa, marks=[pytest.mark.real] if isa == AVAILABLE[-1] else [pytest.mark.real, pytest.mark.slow])


@pytest.fixture(scope="module")
def alone() -> dict[str, list[GenerationResult]]:
    return {}


def expected_of(isa: IsaName, alone: dict[str, list[GenerationResult]]) -> list[GenerationResult]:
    if isa not in alone:
        loaded = load(isa)
        alone[isa] = real_workload(isa).run_alone(loaded)
        loaded.close()
    return alone[isa]


@pytest.mark.parametrize("isa", list(levels()))
@pytest.mark.parametrize(("threads", "chunk"), [(2, 512), (2, 64), (1, 16)])
def test_batches_chunks_and_threads(isa: IsaName, threads: int, chunk: int, alone: dict[str, list[GenerationResult]]) -> None:
    expected = expected_of(isa, alone)
    loaded = load(isa, threads, chunk)
    assert_same(real_workload(isa).run(loaded), expected)
    loaded.close()


@pytest.mark.real
def test_a_tiny_kv_budget_changes_nothing(alone: dict[str, list[GenerationResult]]) -> None:
    """D-SCHED-2: preempted and computed again, on real weights. It takes long answers: the tiny models do it on every level."""
    isa = AVAILABLE[-1]
    expected = expected_of(isa, alone)
    loaded = load(isa, kv_bytes=14 * 2**20)
    assert_same(real_workload(isa).run(loaded), expected)
    assert loaded.engine.scheduler.num_preemptions > 0
    loaded.close()
