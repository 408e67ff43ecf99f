"""The reference backend: walks a program with the functions of ``ops.py``. Correct first; fast only where it costs nothing."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tuili.backends.base import F32, I32, PLAIN_LOADING, Limits, Loading, SamplingBatch, StepInput, StepResult
from tuili.backends.reference.ops import FUNCTIONS, Call, KVState
from tuili.backends.reference.sampler import sample
from tuili.errors import BackendError, NotSupported
from tuili.observe.profile import Profile
from tuili.program.program import BLOCK_SIZE, Instr, Program
from tuili.quant.registry import format_of
from tuili.weights.source import Weight

COLLECTIVES = ("all_reduce", "all_gather")


@dataclass(frozen=True, slots=True)
class Collective:
    """What a rank puts on the table when it reaches an ``all_reduce`` or ``all_gather``, and waits for the answer."""

    op: str
    data: F32


class ReferenceBackend:
    """NumPy, float32. Implements ``tuili.backends.base.Backend``."""

    name = "reference"

    def missing(self, program: Program, formats: Mapping[str, str]) -> list[str]:
        known = {*FUNCTIONS, *COLLECTIVES}
        problems = [f"op {op} has no reference function" for op in sorted({i.op for i in program.instrs} - known)]
        for name in sorted(set(formats.values())):
            try:
                format_of(name)
            except NotSupported as error:
                problems.append(str(error))
        return problems

    def kv_bytes_per_block(self, program: Program) -> tuple[int, ...]:
        return tuple(len(g.states) * 2 * BLOCK_SIZE * g.num_kv_heads * g.head_dim * 2 for g in program.state_groups())

    def load(
        self, program: Program, weights: Mapping[str, Weight], limits: Limits, loading: Loading = PLAIN_LOADING
    ) -> "ReferenceExecutable":
        bound = {name: weights[name] for name in program.weights}
        problems = self.missing(program, {name: weight.format for name, weight in bound.items()})
        if problems:
            raise BackendError(f"the reference backend cannot run {program.name}: {'; '.join(problems)}")
        return ReferenceExecutable(program, bound, limits)


class ReferenceExecutable:
    """Weights are decoded at first use and kept; KV is f16, as the law wants."""

    def __init__(self, program: Program, weights: Mapping[str, Weight], limits: Limits) -> None:
        self.program = program
        self.limits = limits
        self._weights = weights
        self._decoded: dict[str, F32] = {}
        self._states: dict[str, KVState] = {}
        for index, group in enumerate(program.state_groups()):
            shape = (limits.num_blocks[index] * BLOCK_SIZE, group.num_kv_heads, group.head_dim)
            for name in group.states:
                self._states[name] = KVState(np.zeros(shape, np.float16), np.zeros(shape, np.float16), index)
        self._last_use = {value.id: i for i, instr in enumerate(program.instrs) for value in (*instr.inputs, *instr.outputs)}
        self._last_use[program.output.id] = len(program.instrs)

    @property
    def description(self) -> Mapping[str, str]:
        return {"backend": "reference", "kernels": "NumPy float32: the definition, for tests; slow"}

    def launch(self, step: StepInput, sampling: SamplingBatch) -> StepResult:
        return sample(self.run(step), sampling)

    def collect(self, handle: Any) -> StepResult:
        assert isinstance(handle, StepResult)
        return handle

    def run(self, step: StepInput) -> F32:
        """Output rows [R, vocab or width]. A program of several ranks needs ``run_lockstep``."""
        if self.program.world > 1:
            raise BackendError(f"{self.program.name} is rank {self.program.rank} of {self.program.world}; run all ranks together")
        return run_lockstep([self], step)[0]

    def walk(self, step: StepInput) -> Generator[Collective, F32, F32]:
        """Yields at each collective, is sent its result, and returns the output rows."""
        self._check(step)
        values: dict[int, F32] = {}
        for index, instr in enumerate(self.program.instrs):
            if instr.op in COLLECTIVES:
                outputs: Sequence[F32] = ((yield Collective(instr.op, values[instr.inputs[0].id])),)
            else:
                outputs = FUNCTIONS[instr.op](self._call(instr, values, step))
            values.update({value.id: out for value, out in zip(instr.outputs, outputs, strict=True)})
            for value in (*instr.inputs, *instr.outputs):
                if self._last_use[value.id] == index:
                    values.pop(value.id, None)
        return values[self.program.output.id]

    def read_blocks(self, group: int, blocks: I32) -> npt.NDArray[np.uint8]:
        slots = blocks.astype(np.int64)[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)
        parts = [part[slots] for state in self._members(group) for part in (state.keys, state.values)]
        joined = np.stack(parts, axis=1)
        return np.ascontiguousarray(joined).view(np.uint8).reshape(len(blocks), -1)

    def write_blocks(self, group: int, blocks: I32, data: npt.NDArray[np.uint8]) -> None:
        slots = blocks.astype(np.int64)[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)
        members = self._members(group)
        shape = (len(blocks), 2 * len(members), BLOCK_SIZE, *members[0].keys.shape[1:])
        parts = np.ascontiguousarray(data).view(np.float16).reshape(shape)
        for index, state in enumerate(members):
            state.keys[slots] = parts[:, 2 * index]
            state.values[slots] = parts[:, 2 * index + 1]

    def profile(self) -> Profile | None:
        return None

    def close(self) -> None:
        self._decoded.clear()
        self._states.clear()

    def _members(self, group: int) -> list[KVState]:
        return [self._states[name] for name in self.program.state_groups()[group].states]

    def _check(self, step: StepInput) -> None:
        num_tokens, num_seqs = len(step.token_ids), len(step.context_lens)
        assert num_tokens <= self.limits.max_num_batched_tokens, f"{num_tokens} tokens in a step"
        assert num_seqs <= self.limits.max_num_seqs, f"{num_seqs} sequences in a step"
        assert int(step.query_start[-1]) == num_tokens, "query_start does not end at the last token"

    def _call(self, instr: Instr, values: Mapping[int, F32], step: StepInput) -> Call:
        inputs = [values[value.id] for value in instr.inputs]
        weights = [] if instr.op == "embed" else [self._decode(name) for name in instr.weights]
        state = None if instr.state is None else self._states[instr.state]
        return Call(inputs, weights, instr.attrs, step, state, lambda ids: self._rows(instr.weights[0], ids))

    def _decode(self, name: str) -> F32:
        if name not in self._decoded:
            weight = self._weights[name]
            self._decoded[name] = decode(weight)
        return self._decoded[name]

    def _rows(self, name: str, ids: I32) -> F32:
        weight = self._weights[name]
        return decode(Weight(weight.format, (len(ids), *weight.shape[1:]), {"data": weight.data[ids]}))


def decode(weight: Weight) -> F32:
    """All numbers of a weight, float32 in its shape."""
    return format_of(weight.format).decode(weight.data).reshape(weight.shape)


def run_lockstep(ranks: Sequence[ReferenceExecutable], step: StepInput) -> list[F32]:
    """Run every rank of a sharded program side by side; sums and joins are taken in rank order. One output per rank."""
    walks = [rank.walk(step) for rank in ranks]
    answers: list[F32 | None] = [None] * len(walks)
    while True:
        asked: list[Collective] = []
        outputs: list[F32] = []
        for walk, answer in zip(walks, answers, strict=True):
            try:
                asked.append(next(walk) if answer is None else walk.send(answer))
            except StopIteration as stop:
                outputs.append(stop.value)
        if outputs:
            assert len(outputs) == len(walks) and not asked, "ranks do not run the same program"
            return outputs
        assert len({collective.op for collective in asked}) == 1, "ranks reached different collectives"
        answers = [_answer(asked)] * len(walks)


def _answer(asked: Sequence[Collective]) -> F32:
    if asked[0].op == "all_gather":
        return np.concatenate([collective.data for collective in asked], axis=1)
    total = asked[0].data
    for collective in asked[1:]:
        total = total + collective.data
    return total
