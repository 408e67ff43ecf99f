"""Speed of single ops on weights that no cache holds: a program that repeats one op over different weights, run by the native
executor as it runs a model, with its threads, its packing and its way of sharing out the work."""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tuili.backends.base import Executable, Limits, StepInput
from tuili.backends.cpu.executor import CpuBackend
from tuili.bench import probes
from tuili.bench.roofline import Work, matrix_work
from tuili.config.machine import last_level_cache_bytes
from tuili.errors import BackendError, ConfigError
from tuili.program.builder import Builder
from tuili.program.passes.fuse import fuse
from tuili.program.program import BLOCK_SIZE, Program, Value
from tuili.quant.registry import FORMATS, format_of
from tuili.weights.dummy import random_data
from tuili.weights.source import Weight

MATRIX_OPS = ("linear", "gate_up_act")
OPS = (*MATRIX_OPS, "attention")
DEFAULT_ROWS = (1, 2, 4, 8, 16, 32, 128, 512)
#: One context each beside these numbers of queries.
CONTEXTS = (512, 2048)
QUERIES = (1, 512)

#: Weights (or K and V) of one pass together, so that the next pass finds none of them in a cache.
MIN_COLD_BYTES = 64 * 2**20
COLD_CACHES = 3
#: K and V are read again and again by many queries: few layers do.
LAYERS_FOR_MANY_QUERIES = 4

#: A figure is the median of at least this many passes that take at least this long together.
MIN_PASSES = 3
MIN_SECONDS = 0.1
#: Figures are measured again when the limits before and after differ: the machine was doing something else.
MAX_TRIES = 3

_VOCABULARY = 16
_KV_BYTES = 2
_RANDOM_ROWS = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """A matrix of ``outputs`` rows that reads ``inputs`` columns; written 896x4864, the columns first."""

    inputs: int
    outputs: int

    def __str__(self) -> str:
        return f"{self.inputs}x{self.outputs}"


@dataclass(frozen=True, slots=True)
class Heads:
    """``queries`` heads share ``keys`` heads of ``width`` dimensions."""

    queries: int
    keys: int
    width: int

    def __str__(self) -> str:
        return f"{self.queries}/{self.keys}x{self.width}"


#: Between the narrow matrices of small models and the wide ones of large models; divisible by every format's block.
DEFAULT_SHAPES = (Shape(1536, 8960),)
#: Those of Qwen2.5 0.5B and 1.5B.
DEFAULT_HEADS = (Heads(14, 2, 64), Heads(12, 2, 128))


@dataclass(frozen=True, slots=True)
class KernelResult:
    """One figure: ``seconds`` that ``op`` took with ``rows`` rows, and what it had to do at least. ``limits`` are those measured
    around it."""

    op: str
    format: str
    shape: str
    rows: int
    seconds: float
    work: Work
    limits: probes.Limits

    @property
    def operations_per_second(self) -> float:
        return self.work.operations / self.seconds

    @property
    def bytes_per_second(self) -> float:
        return self.work.num_bytes / self.seconds

    @property
    def part_of_limit(self) -> float:
        return self.work.bound(self.limits)[0] / self.seconds

    @property
    def bound(self) -> str:
        return self.work.bound(self.limits)[1]


def parse_shape(text: str) -> Shape:
    """``896x4864``: columns, then rows. Raises ConfigError."""
    inputs, _, outputs = text.lower().partition("x")
    if not (inputs.isdigit() and outputs.isdigit() and int(inputs) and int(outputs)):
        raise ConfigError(f"{text!r} is no shape; one is written KxN, such as 896x4864: K inputs, N outputs")
    return Shape(int(inputs), int(outputs))


@dataclass(slots=True)
class KernelBench:
    """Measures with one backend (its threads, its instructions) and its prober."""

    backend: CpuBackend
    prober: probes.Prober

    def problem(self, fmt: str, shape: Shape) -> str | None:
        """Why this backend cannot multiply with such matrices, in words."""
        missing = self.backend.missing(matrix_program("linear", shape, 1), {"input": "F32", "0.weight": fmt})
        return missing[0] if missing else None

    def matrix(self, op: str, fmt: str, shape: Shape, rows: Sequence[int]) -> Iterator[KernelResult]:
        """``op`` is one of MATRIX_OPS. Raises BackendError for a shape that the format has no kernel for."""
        if problem := self.problem(fmt, shape):
            raise BackendError(problem)
        per_op = (2 if op == "gate_up_act" else 1) * shape.outputs
        num_bytes = per_op * format_of(fmt).row_bytes(shape.inputs)
        copies = _copies(num_bytes)
        program = matrix_program(op, shape, copies)
        limits = Limits(max(rows), 1, max(rows), ())
        executable = self.backend.load(program, matrix_weights(program, fmt), limits)
        try:
            for count in rows:
                work = matrix_work(fmt, num_bytes, count * per_op * shape.inputs)
                yield self._measure(op, fmt, str(shape), count, work, executable, step_input(count, count, 0), copies)
        finally:
            executable.close()

    def attention(self, heads: Heads, context: int, queries: int) -> KernelResult:
        """The last ``queries`` tokens of one sequence of ``context`` tokens."""
        kv_bytes = 2 * context * heads.keys * heads.width * _KV_BYTES
        layers = _copies(kv_bytes) if queries == 1 else LAYERS_FOR_MANY_QUERIES
        program = attention_program(heads, layers)
        blocks = -(-context // BLOCK_SIZE)
        limits = Limits(context, 1, queries, (blocks,))
        executable = self.backend.load(program, matrix_weights(program, "F32"), limits)
        try:
            fill_cache(executable, blocks, self.backend.kv_bytes_per_block(program)[0])
            pairs = sum(range(context - queries + 1, context + 1))
            work = Work(kv_bytes, 0, 4 * pairs * heads.queries * heads.width)
            shape = f"{heads}, context {context}"
            return self._measure("attention", "F16", shape, queries, work, executable, step_input(queries, context, 1), layers)
        finally:
            executable.close()

    def _measure(
        self, op: str, fmt: str, shape: str, rows: int, work: Work, executable: Executable, step: StepInput, copies: int
    ) -> KernelResult:
        tries = 0
        while True:
            tries += 1
            before = self.prober.measure()
            seconds = _median_pass(executable, step) / copies
            after = self.prober.measure()
            if tries == MAX_TRIES or probes.steady(before, after):
                return KernelResult(op, fmt, shape, rows, seconds, work, probes.between(before, after))


def matrix_program(op: str, shape: Shape, copies: int) -> Program:
    """The op ``copies`` times, each with its own weights, all with the same input."""
    b = Builder(f"{op} {shape}")
    x = b.embed(b.weight("input", _VOCABULARY, shape.inputs))
    out: Value = x
    for i in range(copies):
        out = b.linear(x, b.weight(f"{i}.weight", shape.outputs, shape.inputs))
        if op == "gate_up_act":
            up = b.linear(x, b.weight(f"{i}.up", shape.outputs, shape.inputs))
            out = b.act_mul(out, up, "silu")
    program = b.finish(b.select_rows(out), "hidden")
    return fuse(program) if op == "gate_up_act" else program


def attention_program(heads: Heads, layers: int) -> Program:
    """Attention of ``layers`` layers, each with its own K and V, all with the same queries."""
    b = Builder(f"attention {heads}")
    widths = {"q": heads.queries, "k": heads.keys, "v": heads.keys}
    q, k, v = (b.embed(b.weight(name, _VOCABULARY, count * heads.width)) for name, count in widths.items())
    out = q
    for i in range(layers):
        out = b.attention(q, k, v, state=f"{i}", head_dim=heads.width, scale=heads.width**-0.5)
    return b.finish(b.select_rows(out), "hidden")


def matrix_weights(program: Program, fmt: str) -> dict[str, Weight]:
    """Random numbers: embeddings are floats, every other matrix has the format ``fmt``. Copies share their bytes in the file's
    form: the backend packs each by itself."""
    known: dict[tuple[str, tuple[int, ...]], Weight] = {}
    embedded = {name for instr in program.instrs if instr.op == "embed" for name in instr.weights}
    weights: dict[str, Weight] = {}
    for name, decl in program.weights.items():
        key = ("F32" if name in embedded else fmt, decl.shape)
        if key not in known:
            known[key] = _random_weight(*key)
        weights[name] = known[key]
    return weights


def _random_weight(name: str, shape: tuple[int, ...]) -> Weight:
    """A few random rows, again and again."""
    fmt, rows = format_of(name), min(shape[0], _RANDOM_ROWS)
    some = random_data(fmt, (rows, *shape[1:]), np.random.default_rng(0))
    return Weight(name, shape, {"data": np.resize(some, (shape[0], fmt.row_bytes(shape[-1])))})


def step_input(num_tokens: int, context: int, num_groups: int) -> StepInput:
    """The last ``num_tokens`` of one sequence of ``context`` tokens; one output row."""
    positions = np.arange(context - num_tokens, context, dtype=np.int32)
    table = np.arange(-(-context // BLOCK_SIZE), dtype=np.int32)[None]
    return StepInput(
        token_ids=positions % _VOCABULARY,
        positions=positions[None],
        query_start=np.array([0, num_tokens], np.int32),
        context_lens=np.array([context], np.int32),
        slot_mapping=[positions] * num_groups,
        block_tables=[table] * num_groups,
        logit_rows=np.array([num_tokens - 1], np.int32),
        adapter_ids=np.zeros(1, np.int32),
    )


def fill_cache(executable: Executable, num_blocks: int, block_bytes: int) -> None:
    """Random K and V in every block of the one state group: memory that was never written is read from a cache."""
    values = np.random.default_rng(1).standard_normal(block_bytes // _KV_BYTES).astype(np.float16)
    data = values.view(np.uint8)[None]
    for block in range(num_blocks):
        executable.write_blocks(0, np.array([block], np.int32), data)


def _copies(num_bytes: int) -> int:
    cold = max(MIN_COLD_BYTES, COLD_CACHES * (last_level_cache_bytes() or 0))
    return max(1, -(-cold // num_bytes))


def _median_pass(executable: Executable, step: StepInput) -> float:
    """Seconds of one pass; the first, which finds threads asleep and pages untouched, does not count."""
    executable.run(step)
    times: list[float] = []
    while len(times) < MIN_PASSES or sum(times) < MIN_SECONDS:
        start = time.perf_counter()
        executable.run(step)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def check_formats(names: Sequence[str]) -> list[str]:
    """The formats by their exact names, whatever the case. Raises ConfigError for one that is unknown."""
    known = {name.upper(): name for name in FORMATS}
    unknown = [name for name in names if name.upper() not in known]
    if unknown:
        raise ConfigError(f"there is no format {', '.join(unknown)}; known are {', '.join(FORMATS)}")
    return [known[name.upper()] for name in names]
