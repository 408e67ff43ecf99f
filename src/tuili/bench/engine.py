"""Speed of a model behind the engine: prompts, generation, at a depth, many at once. Token ids go in and come out: scheduler,
sampler and everything native is timed, text is not."""

import itertools
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from tuili.backends.select import select_backend
from tuili.bench.probes import Limits, Prober, between
from tuili.bench.roofline import Work, matrix_work
from tuili.config.options import EngineOptions
from tuili.config.resolve import DEFAULT_MAX_NUM_BATCHED_TOKENS
from tuili.engine.build import build_engine, group_shapes, model_facts
from tuili.engine.request import Request
from tuili.errors import BackendError, ConfigError
from tuili.models.load import ModelDescription, read_model
from tuili.program.program import BLOCK_SIZE, Instr
from tuili.types import GenerateRequest, SamplingParams
from tuili.weights.gguf import open_gguf

_KV_BYTES = 2


@dataclass(frozen=True, slots=True)
class Trial:
    """``tokens`` of a prompt ("pp") that follow ``depth`` others, or ``tokens`` generated ("tg") by each of ``batch`` sequences
    that have ``depth`` tokens already."""

    kind: Literal["pp", "tg"]
    tokens: int
    depth: int = 0
    batch: int = 1

    def __str__(self) -> str:
        depth = f" @ d{self.depth}" if self.depth else ""
        return f"{self.kind}{self.tokens}{depth}" + (f" b{self.batch}" if self.batch > 1 else "")

    def sequence_tokens(self, step_tokens: int) -> int:
        """The longest that a sequence gets, one token after another with steps of ``step_tokens``."""
        if self.kind == "pp":
            return self.depth + self.tokens + 1
        return self.depth + 2 + self.tokens + self._head_start(step_tokens)

    def _head_start(self, step_tokens: int) -> int:
        """Tokens that the first sequences of a batch may generate while the last ones read their prompts, at most."""
        if self.batch == 1:
            return 0
        return math.ceil(self.batch * (self.depth + 1) / max(step_tokens - self.batch + 1, 1)) + self.batch

    def work(self, model: ModelDescription, step_tokens: int) -> Work:
        """The least that has to be read and computed in the part that is timed."""
        if self.kind == "pp":
            sizes = [min(step_tokens, self.tokens - done) for done in range(0, self.tokens, step_tokens)]
            ends = list(itertools.accumulate(sizes, initial=self.depth))[1:]
            steps = [step_work(model, size, 1, [(size, end)]) for size, end in zip(sizes, ends, strict=True)]
        else:
            ends = range(self.depth + 2, self.depth + 2 + self.tokens)
            steps = [step_work(model, self.batch, self.batch, [(1, end)] * self.batch) for end in ends]
        return sum(steps, Work())


@dataclass(frozen=True, slots=True)
class TrialResult:
    """``rates``: tokens a second of each repetition; ``parts``: of the limit measured around each. ``limits``: their mean."""

    trial: Trial
    rates: tuple[float, ...]
    parts: tuple[float, ...]
    bound: str
    limits: Limits

    @property
    def rate(self) -> float:
        return statistics.mean(self.rates)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.rates) if len(self.rates) > 1 else 0.0

    @property
    def part_of_limit(self) -> float:
        return statistics.median(self.parts)


def step_work(model: ModelDescription, num_tokens: int, num_outputs: int, sequences: Sequence[tuple[int, int]]) -> Work:
    """One step: every matrix and what is known of every sequence read once. ``sequences``: (tokens in this step, length after
    it) of each."""
    sizes, work = model.sizes(), Work()
    for instr in model.program.instrs:
        if instr.op in ("linear", "gate_up_act", "moe_linear"):
            rows = num_outputs if instr.inputs[0].rows.symbol == "R" else num_tokens
            work += _matrices_work(model, instr, rows, sizes)
        elif instr.op == "attention":
            work += _attention_work(instr, sequences)
    return work


def _matrices_work(model: ModelDescription, instr: Instr, rows: int, sizes: dict[str, int]) -> Work:
    work = Work()
    for name in instr.weights:
        shape = model.program.weights[name].shape
        if len(shape) == 3:
            experts, top_k = shape[0], instr.inputs[1].width
            read = 1 - (1 - top_k / experts) ** rows  # the part of the experts that random choices of so many rows meet
            work += matrix_work(model.formats[name], sizes[name] * read, math.prod(shape[1:]) * top_k * rows)
        elif len(shape) == 2:
            work += matrix_work(model.formats[name], sizes[name], math.prod(shape) * rows)
    return work


def _attention_work(instr: Instr, sequences: Sequence[tuple[int, int]]) -> Work:
    heads, kv_heads, width, window = (instr.attrs[name] for name in ("num_heads", "num_kv_heads", "head_dim", "window"))
    assert isinstance(heads, int) and isinstance(kv_heads, int) and isinstance(width, int)
    reach = window if isinstance(window, int) else math.inf
    read = sum(min(end, reach + new - 1) for new, end in sequences)
    pairs = sum(min(seen, reach) for new, end in sequences for seen in range(end - new + 1, end + 1))
    return Work(read * kv_heads * width * 2 * _KV_BYTES, 0, 4 * pairs * heads * width)


def make_trials(prompts: Sequence[int], generates: Sequence[int], depths: Sequence[int], batches: Sequence[int]) -> list[Trial]:
    """Prompts at each depth; generation at each depth for each batch. Zeros ask for none of a kind, as llama-bench has it."""
    pp = [Trial("pp", tokens, depth) for depth in depths for tokens in prompts if tokens]
    tg = [Trial("tg", tokens, depth, batch) for depth in depths for tokens in generates if tokens for batch in batches]
    if not pp + tg:
        raise ConfigError("there is nothing to measure: give -p or -n a number above 0")
    return list(dict.fromkeys(pp + tg))


class EngineBench:
    """A model loaded for these trials: its KV cache holds exactly what they need.

    Raises ConfigError for trials that this model or a step's size cannot do, and whatever ``build_engine`` raises.
    """

    def __init__(self, path: Path, trials: Sequence[Trial], options: EngineOptions) -> None:
        self.trials = trials
        self.step_tokens = options.max_num_batched_tokens or DEFAULT_MAX_NUM_BATCHED_TOKENS
        self.loaded = build_engine(path, self._fit(path, options))
        assert self.loaded.description is not None
        self.model: ModelDescription = self.loaded.description
        self.prober = Prober(self.loaded.resolved.threads, options.isa)
        self._requests = itertools.count()
        self._rng = np.random.default_rng(0)

    def __enter__(self) -> "EngineBench":
        return self

    def __exit__(self, *error: object) -> None:
        self.loaded.close()

    def _fit(self, path: Path, options: EngineOptions) -> EngineOptions:
        """The options with room for the largest of them."""
        source = open_gguf(path)
        try:
            model = read_model(source)
        finally:
            source.close()
        backend, _ = select_backend(options.backend, isa=options.isa, threads=options.threads)
        facts = model_facts(model, group_shapes(model.program, backend))
        for trial in self.trials:
            check_trial(trial, facts.max_position_embeddings, self.step_tokens)
        spare = BLOCK_SIZE  # the scheduler keeps a block for each running sequence
        kv_bytes = max(
            t.batch * facts.kv_bytes(t.sequence_tokens(self.step_tokens) + spare, self.step_tokens) for t in self.trials
        )
        return EngineOptions(
            backend=options.backend,
            isa=options.isa,
            threads=options.threads,
            max_model_len=min(max(t.sequence_tokens(self.step_tokens) for t in self.trials), facts.max_position_embeddings),
            max_num_seqs=max(t.batch for t in self.trials),
            max_num_batched_tokens=self.step_tokens,
            kv_cache_memory_bytes=kv_bytes,
            enable_prefix_caching=False,
        )

    def run(self, repeats: int) -> Iterator[TrialResult]:
        """Each trial once to warm up, then ``repeats`` times, with the limits measured before and after each."""
        for trial in self.trials:
            self._seconds(trial)
            work = trial.work(self.model, self.step_tokens)
            probed = [self.prober.measure()]
            times: list[float] = []
            for _ in range(repeats):
                times.append(self._seconds(trial))
                probed.append(self.prober.measure())
            limits = [between(*pair) for pair in itertools.pairwise(probed)]
            parts = [work.bound(limit)[0] / seconds for limit, seconds in zip(limits, times, strict=True)]
            mean = Limits(*(statistics.mean(values) for values in zip(*map(_fields, limits), strict=True)))
            rates = tuple(trial.batch * trial.tokens / seconds for seconds in times)
            yield TrialResult(trial, rates, tuple(parts), work.bound(mean)[1], mean)

    def _seconds(self, trial: Trial) -> float:
        return self._prompt_seconds(trial) if trial.kind == "pp" else self._generation_seconds(trial)

    def _prompt_seconds(self, trial: Trial) -> float:
        """From the moment when ``depth`` tokens are in the cache to the first token of the answer."""
        request = self._add(trial.depth + trial.tokens, 1)
        sequence = request.sequences[0]
        while sequence.num_computed_tokens < trial.depth:
            self._step()
        assert sequence.num_computed_tokens == trial.depth
        start = time.perf_counter()
        while not self._step():
            pass
        return time.perf_counter() - start

    def _generation_seconds(self, trial: Trial) -> float:
        """``tokens`` steps in which each of ``batch`` sequences gets a token."""
        longest = trial.sequence_tokens(self.step_tokens) - trial.depth - 1
        requests = [self._add(trial.depth + 1, longest) for _ in range(trial.batch)]
        while not all(request.sequences[0].num_output_tokens for request in requests):
            self._step()
        start = time.perf_counter()
        num_tokens = sum(self._step() for _ in range(trial.tokens))
        seconds = time.perf_counter() - start
        if num_tokens != trial.batch * trial.tokens or self.loaded.engine.scheduler.num_preemptions:
            raise BackendError(
                f"{trial} gave {num_tokens} tokens, not {trial.batch * trial.tokens}: this is a bug in the benchmark"
            )
        for request in requests:
            self.loaded.engine.abort(request.request_id)
        return seconds

    def _add(self, num_prompt_tokens: int, max_tokens: int) -> Request:
        ids = self._rng.integers(0, self.loaded.checker.num_tokens, num_prompt_tokens).tolist()
        number = next(self._requests)
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        source = GenerateRequest(f"bench-{number}", tuple(ids), params, arrival=0.0)
        request = self.loaded.checker.check(source, number)
        self.loaded.engine.add(request)
        return request

    def _step(self) -> int:
        """One step; returns how many tokens it gave."""
        events = self.loaded.engine.step().events
        for event in events:
            if event.error:
                raise BackendError(event.error)
        return len(events)


def _fields(limits: Limits) -> tuple[float, float, float, float]:
    return limits.read_bandwidth, limits.int8_peak, limits.fp32_peak, limits.core_latency


def check_trial(trial: Trial, context: int, step_tokens: int) -> None:
    """Raises ConfigError for what cannot be measured, saying what could."""
    if trial.batch > step_tokens:
        raise ConfigError(
            f"{trial} needs {trial.batch} tokens a step; a step computes {step_tokens}: set --max-num-batched-tokens"
        )
    needed = trial.sequence_tokens(step_tokens)
    if needed > context:
        raise ConfigError(
            f"{trial} needs a context of {needed} tokens; the model has {context}: ask for fewer, or for less depth"
        )
    if trial.kind == "pp" and trial.depth % step_tokens:
        raise ConfigError(
            f"{trial} cannot be timed: a step computes {step_tokens} tokens, so one would lie on both sides of that depth; "
            f"give a depth that is a multiple of {step_tokens}, set --max-num-batched-tokens, or leave prompts out with -p 0"
        )
