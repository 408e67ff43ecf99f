"""The engine with real attention: tiny models on the reference backend, with and without sliding windows.

NumPy's matrix products depend on the number of rows in their last bits, so log-probabilities are close here, not identical;
the native backend is held to the bit in tests/e2e/test_exactness.py.
"""

import random

import pytest

from support.tiny_engine import mixed_workload, tiny_engine
from tuili.backends.reference.executor import ReferenceBackend
from tuili.config.options import EngineOptions
from tuili.engine.build import LoadedEngine
from tuili.engine.llm import GenerationResult

RNG = random.Random(1)
WORKLOAD = mixed_workload([[RNG.randrange(260) for _ in range(RNG.choice((3, 17, 30)))] for _ in range(5)], 40)


def engine(architecture: str, **options: int) -> LoadedEngine:
    return tiny_engine(architecture, ReferenceBackend(), EngineOptions(max_model_len=80, **options))


def assert_close(got: list[GenerationResult], expected: list[GenerationResult]) -> None:
    for ours, theirs in zip(got, expected, strict=True):
        assert [o.token_ids for o in ours.outputs] == [o.token_ids for o in theirs.outputs]
        for one, other in zip(ours.outputs, theirs.outputs, strict=True):
            assert [e.logprob for e in one.logprobs] == pytest.approx([e.logprob for e in other.logprobs], abs=1e-4)
        given = [[e and e.logprob for e in result.prompt_logprobs or ()] for result in (ours, theirs)]
        assert given[0] == pytest.approx(given[1], abs=1e-4)


@pytest.mark.parametrize("architecture", ["gemma3"])  # full and sliding-window layers in one model
def test_batches_chunks_and_preemption_change_nothing(architecture: str) -> None:
    expected = WORKLOAD.run_alone(engine(architecture))
    assert_close(WORKLOAD.run(engine(architecture, max_num_batched_tokens=16)), expected)
    budget = tight_budget(architecture)
    small = engine(architecture, kv_cache_memory_bytes=budget)
    assert_close(WORKLOAD.run(small), expected)
    assert small.engine.scheduler.num_preemptions > 0


def tight_budget(architecture: str) -> int:
    """Just what one sequence of the whole context needs."""
    alone = engine(architecture, max_num_seqs=1)
    return alone.resolved.kv_cache_memory_bytes
