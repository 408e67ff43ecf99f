"""Reused keys and values change no bit, nor do guesses: with the prefix cache off, cold, warm, under eviction and preemption."""

import random
from dataclasses import replace
from typing import Any

import pytest

from support import models
from support.tiny_engine import MACHINE, Workload, mixed_workload, tiny_engine
from tuili.config.options import EngineOptions, IsaName, SpeculativeConfig
from tuili.engine.build import LoadedEngine, build_engine
from tuili.engine.llm import GenerationResult
from tuili.models.registry import architectures
from tuili.types import StructuredOutputs

pytest.importorskip("tuili._native", reason="the native extension is not built")

from tuili.backends.cpu.executor import CpuBackend
from tuili.backends.cpu.native import best_isa

LEVELS: tuple[IsaName, ...] = ("generic", "avx2", "avx512")
AVAILABLE = LEVELS[: LEVELS.index(best_isa()) + 1]


def shared_workload(count: int, vocab_size: int, longest: int, max_tokens: int) -> Workload:
    """Prompts that begin alike: two stems, cut at lengths around the block size and beyond, each with an end of its own."""
    rng = random.Random(23)
    stems = [[rng.randrange(vocab_size) for _ in range(longest)] for _ in range(2)]
    cuts = [15, 16, 17, 31, 32, 33, longest]
    prompts = [
        [*rng.choice(stems)[: rng.choice(cuts)], *(rng.randrange(vocab_size) for _ in range(rng.randrange(1, 9)))]
        for _ in range(count)
    ]
    return mixed_workload(prompts, max_tokens)


def assert_same(got: list[GenerationResult], expected: list[GenerationResult]) -> None:
    """Bit for bit: tokens, text, log-probabilities, counts; only where the prompt's tokens came from may differ."""
    for i, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        assert replace(ours, usage=replace(ours.usage, cached_tokens=0)) == theirs, f"request {i} differs"


#: Forms that go on longer than the answers, and one with keys that are put without asking the model.
LETTERS = StructuredOutputs(regex="[ab]{200}")
RECORD = StructuredOutputs(
    json={
        "type": "array",
        "minItems": 20,
        "items": {
            "type": "object",
            "properties": {"wanted": {"type": "boolean"}, "kind": {"enum": ["he", "hello", 3]}},
            "required": ["wanted", "kind"],
            "additionalProperties": False,
        },
    }
)


def constrained(workload: Workload) -> Workload:
    """The same requests, four of five with a form: with log-probabilities, and without, where forced tokens are jumped over."""
    forms = [(LETTERS, 2), (None, 2), (RECORD, 2), (RECORD, None), (LETTERS, None)]
    params = [
        replace(params, structured_outputs=forms[i % 5][0], logprobs=forms[i % 5][1]) for i, params in enumerate(workload.params)
    ]
    return Workload(workload.prompts, params)


GUESSING = SpeculativeConfig("ngram", prompt_lookup_min=1, max_batch_rows=32)


def check(workload: Workload, off: LoadedEngine, on: LoadedEngine, small: LoadedEngine, guessing: LoadedEngine) -> None:
    """``off``: without a prefix cache; ``small``: a KV budget that has to evict and preempt; ``guessing``: the same with guesses
    at the tokens ahead."""
    expected = workload.run_alone(off)
    assert_same(workload.run(off), expected)
    cold, warm = workload.run(on), workload.run(on)
    assert_same(cold, expected)
    assert_same(warm, expected)
    assert_same(workload.run_alone(on), expected)
    for result, params in zip(warm, workload.params, strict=True):
        reusable = (len(result.prompt_token_ids) - 1) // 16 * 16
        assert result.usage.cached_tokens == (0 if params.prompt_logprobs is not None else reusable)
    for _ in range(2):
        assert_same(workload.run(small), expected)
        assert_same(workload.run(guessing), expected)
    assert_same(workload.run_alone(guessing), expected)
    assert small.engine.scheduler.num_preemptions > 0
    assert guessing.engine.scheduler.draft_stats.num_accepted_tokens > 0
    for loaded in (off, on, small, guessing):
        loaded.close()


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("architecture", sorted(architectures()))
def test_tiny_models(architecture: str, isa: IsaName) -> None:
    """D-PFX-1, on every architecture: full, sliding and mixed state groups."""
    check_tiny(shared_workload(12, 260, 60, 30), architecture, isa)


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("architecture", ["gemma3", "llama"])
def test_tiny_models_with_grammars(architecture: str, isa: IsaName) -> None:
    """D-SPEC-1: a grammar, with jumps over forced tokens and without, beside requests that have none."""
    check_tiny(constrained(shared_workload(12, 260, 60, 30)), architecture, isa)


def check_tiny(workload: Workload, architecture: str, isa: IsaName) -> None:
    def engine(**options: Any) -> LoadedEngine:
        return tiny_engine(architecture, CpuBackend(isa=isa, threads=2), EngineOptions(max_model_len=112, **options))

    budget = engine(max_num_seqs=1).resolved.kv_cache_memory_bytes
    check(
        workload,
        engine(enable_prefix_caching=False),
        engine(),
        engine(kv_cache_memory_bytes=budget, max_num_batched_tokens=64),
        engine(kv_cache_memory_bytes=2 * budget, max_num_batched_tokens=64, speculative_config=GUESSING),
    )


@pytest.mark.real
@pytest.mark.parametrize("with_grammars", [False, True])
def test_smollm2(with_grammars: bool) -> None:
    workload = shared_workload(18, 49152, 150, 16)

    def load(**options: Any) -> LoadedEngine:
        chosen = EngineOptions(backend="cpu", threads=2, max_model_len=512, **{"kv_cache_memory_bytes": 2**28, **options})
        return build_engine(models.path("smollm2:135m"), chosen, machine=MACHINE)

    check(
        constrained(workload) if with_grammars else workload,
        load(enable_prefix_caching=False),
        load(),
        load(kv_cache_memory_bytes=8 * 2**20),
        load(kv_cache_memory_bytes=16 * 2**20, speculative_config=GUESSING),
    )
