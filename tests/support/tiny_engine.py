"""Engines around the architectures' ``tiny()`` models with random weights, and a set of mixed requests to compare them by."""

from collections.abc import Callable
from dataclasses import dataclass

from support.fake_model import small_tokenizer
from tuili.backends.base import Backend
from tuili.config.machine import MachineFacts
from tuili.config.options import EngineOptions
from tuili.config.resolve import resolve
from tuili.engine.build import LoadedEngine, assemble, group_shapes, model_facts, plan_limits
from tuili.engine.llm import LLM, GenerationResult
from tuili.models.load import ModelDescription, build_program
from tuili.models.registry import architectures
from tuili.types import SamplingParams
from tuili.weights.dummy import dummy_weights

MACHINE = MachineFacts(num_cpus=2, num_cores=2, cpu_quota=None, available_memory=2**34, total_memory=2**34, memory_limit=None)


def tiny_engine(
    architecture: str,
    backend: Backend,
    options: EngineOptions,
    format_for: Callable[[str, tuple[int, ...]], str] = lambda name, shape: "F32",
) -> LoadedEngine:
    """The ``tiny()`` model of an architecture, weights seeded, behind a real engine."""
    arch = architectures()[architecture]
    spec = arch.spec(arch.tiny())
    program = build_program(arch, spec)
    weights = dummy_weights({name: decl.shape for name, decl in program.weights.items()}, 3, format_for)
    description = ModelDescription(architecture, spec, program, {name: w.format for name, w in weights.items()}, {})
    groups = group_shapes(program, backend)
    resolved = resolve(options, model_facts(description, groups), MACHINE)
    limits = plan_limits(groups, resolved)
    return assemble(backend.load(program, weights, limits), program, limits, resolved, small_tokenizer(None))


@dataclass(frozen=True)
class Workload:
    """Requests of every kind: greedy and seeded, filters, penalties, bias, several sequences, log-probabilities everywhere."""

    prompts: list[list[int]]
    params: list[SamplingParams]

    def run(self, loaded: LoadedEngine) -> list[GenerationResult]:
        """All at once."""
        results = LLM(loaded).generate(self.prompts, self.params)
        loaded.engine.scheduler.kv.check()
        assert loaded.engine.scheduler.kv.usage == 0
        return results

    def run_alone(self, loaded: LoadedEngine) -> list[GenerationResult]:
        """One after the other."""
        llm = LLM(loaded)
        return [llm.generate([prompt], params)[0] for prompt, params in zip(self.prompts, self.params, strict=True)]


def mixed_workload(prompts: list[list[int]], max_tokens: int) -> Workload:
    """Sampling parameters of six kinds over the prompts in turn."""
    kinds: list[dict[str, object]] = [
        {"temperature": 0.0},
        {},
        {"top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2},
        {"temperature": 0.7, "min_p": 0.02, "presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"temperature": 0.0, "prompt_logprobs": 1, "repetition_penalty": 1.1},
        {"n": 2, "logit_bias": {5: 3.0, 9: -100.0}, "min_tokens": 4},
    ]
    params = [
        SamplingParams(seed=i, max_tokens=max_tokens, ignore_eos=True, logprobs=2, **kinds[i % len(kinds)])  # type: ignore[arg-type]
        for i in range(len(prompts))
    ]
    return Workload(prompts, params)
