"""The native CPU backend: packs weights once, then runs a step in one native call without the GIL."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tuili.backends.base import F32, I32, PLAIN_LOADING, Limits, Loading, SamplingBatch, StepInput, StepResult
from tuili.backends.cpu.emit import ACTIVATIONS, SCORINGS, Bound, emit
from tuili.backends.cpu.lower import PHASE_OPS, ROW_OPS, Lowered, lower
from tuili.backends.cpu.native import ISA_NAMES, extension, isa_level, usable_cpus
from tuili.backends.cpu.packing import PackedWeights, compile_pack, load_weights, matrix_names, release
from tuili.backends.cpu.profile import phase_labels, read_profile
from tuili.config.options import IsaName
from tuili.errors import BackendError, ConfigError, NotSupported
from tuili.observe.profile import Profile
from tuili.program.program import BLOCK_SIZE, Instr, Program
from tuili.quant.format import Bytes
from tuili.quant.registry import format_of
from tuili.weights.source import Weight

if TYPE_CHECKING:
    from tuili.backends.cpu.native import BoundStep, Executor

MAX_HEAD_DIM = 512

#: Output rows that are computed and sampled together: bounds the memory of the logits.
MAX_OUTPUTS_AT_ONCE = 64

#: Tokens between two times that the pages of stored tables are given back. Each may have mapped 64 KiB of the
#: file, or a huge page where the system's cache has those.
_TOKENS_BETWEEN_RELEASES = 256

_MEBIBYTE = 1024 * 1024


class CpuBackend:
    """Makes native executables. ``isa``: the level to use, None for this CPU's best; ``threads``: None for all usable CPUs;
    ``cpus``: CPUs to bind the threads to, in their order;
    ``profile``: keep the time of every phase of a step.

    Raises BackendError without the compiled extension, or for a level that this CPU lacks.
    """

    def __init__(
        self,
        isa: IsaName | None = None,
        threads: int | None = None,
        *,
        cpus: Sequence[int] | None = None,
        profile: bool = False,
    ) -> None:
        if threads is not None and not 1 <= threads <= 1024:
            raise ConfigError(f"threads is {threads}; it has to be from 1 to 1024")
        self.name = "cpu"
        self._isa = isa_level(isa)
        self.threads = threads or (usable_cpus() if cpus is None else len(cpus))
        self._cpus = _check_cpus(cpus, self.threads)
        self._profile = profile

    @property
    def isa(self) -> IsaName:
        return ISA_NAMES[self._isa]

    def missing(self, program: Program, formats: Mapping[str, str]) -> list[str]:
        problems = [problem for instr in program.instrs for problem in _problems(instr)]
        for name in sorted(matrix_names(program)):
            try:
                fmt = format_of(formats[name])
            except NotSupported as error:
                problems.append(str(error))
                continue
            cols = program.weights[name].shape[-1]
            if not extension().supports(self._isa, fmt.ggml_type, cols):
                problems.append(f"no {self.isa} kernel for {fmt.name} matrices of {cols} columns")
        return list(dict.fromkeys(problems))

    def kv_bytes_per_block(self, program: Program) -> tuple[int, ...]:
        return _kv_bytes_per_block(program)

    def load(
        self, program: Program, weights: Mapping[str, Weight], limits: Limits, loading: Loading = PLAIN_LOADING
    ) -> "CpuExecutable":
        formats = self._checked_formats(program, weights)
        executor = self._new_executor()
        lowered = lower(program, lambda name: extension().reads_acts(self._isa, format_of(formats[name]).ggml_type))
        packed = load_weights(executor, self.isa, program, weights, loading)
        values, states = _add_values(executor, lowered), _add_states(executor, program, limits)
        bound = Bound(executor, packed.matrices, packed.tables, packed.vectors, values, states, {})
        outputs = min(MAX_OUTPUTS_AT_ONCE, limits.max_num_batched_tokens)
        try:
            emit(program, lowered, bound, max_tokens=limits.max_num_batched_tokens, max_outputs_at_once=outputs)
        except MemoryError as error:
            raise BackendError(
                "not enough memory for the KV cache and the buffers of a step;"
                " lower kv_cache_memory_bytes or max_num_batched_tokens"
            ) from error
        if self._profile:
            executor.start_profile()
        labels = phase_labels(program, lowered.phases, formats) if self._profile else None
        return CpuExecutable(executor, program, self._describe(executor, program, limits, packed), labels, packed.stored)

    def compile(self, program: Program, weights: Mapping[str, Weight], loading: Loading) -> tuple[Path, bool]:
        """Pack, and keep that for later starts in ``loading.packs``: the file, and whether it is new. Raises CacheError when it
        cannot be kept, BackendError as ``load`` does."""
        self._checked_formats(program, weights)
        return compile_pack(self._new_executor(), self.isa, program, weights, loading)

    def _checked_formats(self, program: Program, weights: Mapping[str, Weight]) -> dict[str, str]:
        formats = {name: weights[name].format for name in program.weights}
        problems = self.missing(program, formats)
        if problems:
            raise BackendError(f"the native CPU backend cannot run {program.name}: {'; '.join(problems)}")
        return formats

    def _new_executor(self) -> "Executor":
        try:
            return extension().Executor(self._isa, self.threads, self._cpus)
        except ValueError as error:
            raise BackendError(f"{error}; list other CPUs, or leave cpu_list out") from error
        except RuntimeError as error:
            raise BackendError(f"the system does not let {self.threads} threads start ({error}); set fewer threads") from error

    def _describe(self, executor: "Executor", program: Program, limits: Limits, packed: PackedWeights) -> dict[str, str]:
        per_block = _kv_bytes_per_block(program)
        kv_bytes = sum(count * size for count, size in zip(limits.num_blocks, per_block, strict=True))
        return {
            "backend": self.name,
            "isa": self.isa,
            "kernels": "integer matrix products on packed weights, f16 KV",
            "threads": f"{self.threads}, bound to CPUs {', '.join(map(str, self._cpus))}" if self._cpus else str(self.threads),
            "weights": f"{packed.num_bytes / _MEBIBYTE:.0f} MiB, {packed.origin}",
            "huge pages": f"{executor.huge_weight_bytes() / _MEBIBYTE:.0f} MiB of the weights",
            "kv cache": f"at most {kv_bytes / _MEBIBYTE:.0f} MiB",
            "step buffers": f"at most {executor.arena_bytes() / _MEBIBYTE:.0f} MiB",
        }


class CpuExecutable:
    """A program in native memory. ``launch`` runs the whole step and its sampling; other Python threads go on meanwhile.

    ``labels``: names of the phases where the executor keeps their times, else None. ``stored``: tables that are read where they
    lie in the model file.
    """

    def __init__(
        self,
        executor: "Executor",
        program: Program,
        description: Mapping[str, str],
        labels: Sequence[str] | None = None,
        stored: Sequence[Bytes] = (),
    ) -> None:
        self._native: Executor | None = executor
        self._stored = stored
        self._tokens_since_release = 0
        self._width = program.output.width
        self._block_bytes = _kv_bytes_per_block(program)
        self._description = description
        self._labels = labels
        self._last_profile: Profile | None = None
        self._bound: _Bound | None = None

    @property
    def description(self) -> Mapping[str, str]:
        return self._description

    @property
    def _executor(self) -> "Executor":
        if self._native is None:
            raise BackendError("the executable is closed")
        return self._native

    def launch(self, step: StepInput, sampling: SamplingBatch) -> StepResult:
        if self._bound is None or self._bound.step is not step or self._bound.sampling is not sampling:
            self._bound = _bind(self._executor, step, sampling)
        self._executor.sample(self._bound.native)
        self._release_stored(len(step.token_ids))
        return self._bound.result

    def collect(self, handle: Any) -> StepResult:
        assert isinstance(handle, StepResult)
        return handle

    def run(self, step: StepInput) -> F32:
        out = np.empty((len(step.logit_rows), self._width), np.float32)
        self._executor.run(step, out)
        self._release_stored(len(step.token_ids))
        return out

    def _release_stored(self, num_tokens: int) -> None:
        """Pages of the model file count as ours as long as they are mapped: tables never hold more than a few."""
        self._tokens_since_release += num_tokens
        if self._tokens_since_release >= _TOKENS_BETWEEN_RELEASES:
            self._tokens_since_release = 0
            for table in self._stored:
                release(table)

    def read_blocks(self, group: int, blocks: I32) -> npt.NDArray[np.uint8]:
        out = np.empty((len(blocks), self._block_bytes[group]), np.uint8)
        self._executor.read_blocks(group, blocks, out)
        return out

    def write_blocks(self, group: int, blocks: I32, data: npt.NDArray[np.uint8]) -> None:
        if data.shape != (len(blocks), self._block_bytes[group]):
            raise BackendError(f"block data is {data.shape}; {len(blocks)} blocks take {self._block_bytes[group]} bytes each")
        self._executor.write_blocks(group, blocks, np.ascontiguousarray(data))

    def profile(self) -> Profile | None:
        if self._native is not None and self._labels is not None:
            self._last_profile = read_profile(self._labels, self._native.profile())
        return self._last_profile

    def close(self) -> None:
        """Free the native memory and stop the threads."""
        self.profile()
        self._native = self._bound = None
        self._stored = ()


@dataclass(frozen=True, slots=True)
class _Bound:
    """A step's arrays and those of its result, known to the native side."""

    step: StepInput
    sampling: SamplingBatch
    result: StepResult
    native: "BoundStep"


def _bind(executor: "Executor", step: StepInput, sampling: SamplingBatch) -> _Bound:
    rows = len(step.logit_rows)
    widest = max(0, int(sampling.num_logprobs.max(initial=0)))
    result = StepResult(
        token_ids=np.empty(rows, np.int32),
        logprobs=np.empty(rows, np.float32),
        top_ids=np.empty((rows, widest), np.int32),
        top_logprobs=np.empty((rows, widest), np.float32),
    )
    native = extension().BoundStep(
        executor, step, sampling, result.token_ids, result.logprobs, result.top_ids, result.top_logprobs
    )
    return _Bound(step, sampling, result, native)


def _check_cpus(cpus: Sequence[int] | None, threads: int) -> list[int]:
    """One CPU for each thread; none without a list. Raises ConfigError for CPUs that this process may not use."""
    if cpus is None:
        return []
    if not hasattr(os, "sched_getaffinity"):
        raise ConfigError("cpu_list needs a system that binds threads to CPUs, which is Linux; leave it out here")
    allowed = os.sched_getaffinity(0)
    if forbidden := [cpu for cpu in cpus if cpu not in allowed]:
        raise ConfigError(
            f"cpu_list names CPU {', '.join(map(str, forbidden))}, but this process may run on {_ranges(sorted(allowed))} only"
        )
    if threads > len(cpus):
        raise ConfigError(f"{threads} threads do not go on the {len(cpus)} CPUs of cpu_list, one for each")
    return list(cpus[:threads])


def _ranges(cpus: Sequence[int]) -> str:
    """As Linux writes them: ``0,2-3``."""
    parts: list[str] = []
    for _, run in groupby(enumerate(cpus), lambda pair: pair[1] - pair[0]):
        numbers = [cpu for _, cpu in run]
        parts.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return ",".join(parts)


def _kv_bytes_per_block(program: Program) -> tuple[int, ...]:
    """Padded to an odd number of 2 KiB, as native/program/plan.h explains."""
    sizes = (len(g.states) * 2 * BLOCK_SIZE * g.num_kv_heads * g.head_dim * 2 for g in program.state_groups())
    return tuple((-(-size // 2048) | 1) * 2048 for size in sizes)


def _problems(instr: Instr) -> list[str]:
    """What of an instruction has no native kernel, in words."""
    if instr.op not in ROW_OPS | PHASE_OPS:
        return [f"op {instr.op} has no native kernel"]
    problems: list[str] = []
    if instr.op == "attention":
        head_dim = instr.attrs["head_dim"]
        assert isinstance(head_dim, int)
        if head_dim % 16 or head_dim > MAX_HEAD_DIM:
            problems.append(
                f"attention needs a head_dim that is a multiple of 16, at most {MAX_HEAD_DIM}; this model's is {head_dim}"
            )
        if instr.state is None:
            problems.append("attention without a KV state has no native kernel")
    if instr.op in ("act_mul", "gate_up_act") and instr.attrs["act"] not in ACTIVATIONS:
        problems.append(f"activation {instr.attrs['act']} has no native kernel; there are {', '.join(ACTIVATIONS)}")
    if instr.op == "moe_route" and instr.attrs["scoring"] not in SCORINGS:
        problems.append(f"expert scoring {instr.attrs['scoring']} has no native kernel; there are {', '.join(SCORINGS)}")
    return problems


def _add_values(executor: "Executor", lowered: Lowered) -> dict[int, int]:
    ids: dict[int, int] = {}
    for value in lowered.values:
        offset = lowered.buffers.slots[value.id].offset
        ids[value.id] = executor.add_value(value.rows.symbol == "R", value.rows.multiple, value.width, offset)
    return ids


def _add_states(executor: "Executor", program: Program, limits: Limits) -> dict[str, tuple[int, int]]:
    states: dict[str, tuple[int, int]] = {}
    for group, num_blocks in zip(program.state_groups(), limits.num_blocks, strict=True):
        index = executor.add_state_group(len(group.states), group.num_kv_heads, group.head_dim, num_blocks)
        states.update({name: (index, layer) for layer, name in enumerate(group.states)})
    return states
