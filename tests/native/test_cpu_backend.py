"""The backend's edges: what it cannot run, what it refuses, what it gives back."""

import dataclasses
import mmap
import resource
from pathlib import Path

import numpy as np
import pytest

from support.steps import Sequences, limits_for
from tuili.backends.cpu.executor import CpuBackend
from tuili.backends.cpu.lower import lower
from tuili.backends.cpu.native import ISA_NAMES, best_isa
from tuili.backends.reference.sampler import greedy
from tuili.backends.select import select_backend
from tuili.errors import BackendError, ConfigError
from tuili.models.load import build_program
from tuili.models.registry import architectures
from tuili.program.builder import Builder
from tuili.program.program import Program
from tuili.weights.dummy import dummy_weights
from tuili.weights.source import Weight


def llama() -> Program:
    arch = architectures()["llama"]
    return build_program(arch, arch.spec(arch.tiny(), 128))


def sequences(program: Program) -> Sequences:
    weights = dummy_weights({name: decl.shape for name, decl in program.weights.items()}, 1, lambda name, shape: "F32")
    limits = limits_for(program, max_model_len=64, max_num_seqs=2, max_tokens=32)
    return Sequences(CpuBackend(threads=2).load(program, weights, limits), program, limits)


def test_blocks_are_an_odd_number_of_2_kib_apart() -> None:
    program = llama()
    (group,) = program.state_groups()
    content = len(group.states) * 2 * 16 * group.num_kv_heads * group.head_dim * 2
    (size,) = CpuBackend().kv_bytes_per_block(program)
    assert size % 4096 == 2048
    assert content <= size < content + 4096
    running = sequences(program)
    blocks = np.array([2, 0, 1], np.int32)
    data = running.executable.read_blocks(0, blocks)
    assert data.shape == (3, size)
    data[:] = np.arange(data.size, dtype=np.uint8).reshape(data.shape)
    running.executable.write_blocks(0, blocks, data)  # all of a block, and nothing beyond it
    np.testing.assert_array_equal(running.executable.read_blocks(0, blocks), data)


def test_what_is_missing_is_named() -> None:
    b = Builder("strange")
    x = b.embed(b.weight("table", 10, 24))
    q, k, v = b.split(x, (8, 8, 8))
    y = b.attention(q, k, v, state="kv", head_dim=8, scale=1.0)
    program = b.finish(b.select_rows(b.act_mul(y, y, "swish7")), "hidden")
    problems = "; ".join(CpuBackend().missing(program, {"table": "Q1_0"}))
    for part in ("head_dim", "8", "swish7", "Q1_0"):
        assert part in problems
    with pytest.raises(BackendError, match="swish7"):
        CpuBackend().load(
            program, {"table": Weight("F32", (10, 24), {"data": np.zeros((10, 96), np.uint8)})}, limits_for(program)
        )


def test_levels_and_threads_are_checked() -> None:
    assert CpuBackend().isa == best_isa()
    assert CpuBackend("generic", 3).threads == 3
    with pytest.raises(ConfigError, match="threads"):
        CpuBackend(threads=0)
    for level in ISA_NAMES[ISA_NAMES.index(best_isa()) + 1 :]:
        with pytest.raises(BackendError, match=level):
            CpuBackend(level)


def test_threads_that_the_system_refuses() -> None:
    """Stacks of a thousand threads do not fit into the address space that is left."""
    program = llama()
    weights = dummy_weights({name: decl.shape for name, decl in program.weights.items()}, 1, lambda name, shape: "F32")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 256 * 2**20, hard))
    try:
        with pytest.raises(BackendError, match="1000 threads"):
            CpuBackend("generic", 1000).load(program, weights, limits_for(program))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_select_backend() -> None:
    backend, why = select_backend("auto", isa="generic", threads=1)
    assert isinstance(backend, CpuBackend) and backend.isa == "generic" and "cpu" in why
    with pytest.raises(ConfigError, match="reference"):
        select_backend("gpu", isa=None, threads=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="isa is 'sse'; it has to be one of generic, avx2, avx512"):
        select_backend("cpu", isa="sse")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("token_ids", [999, 1, 2], "token_ids"),
        ("token_ids", [-1, 1, 2], "token_ids"),
        ("logit_rows", [3], "logit_rows"),
        ("slot_mapping", [[10_000, 1, 2]], "slot_mapping"),
        ("block_tables", [[[-1]]], "block_tables"),
        ("block_tables", [[[500]]], "block_tables"),
        ("query_start", [0, 2], "query_start"),
        ("context_lens", [2], "context"),
        ("context_lens", [33], "block table"),
    ],
)
def test_a_wrong_step_is_refused_before_it_touches_memory(field: str, value: list[object], message: str) -> None:
    run = sequences(llama())
    step = run.step_input({0: [1, 2, 3]})
    arrays = [np.array(v, np.int32) for v in value] if field in ("slot_mapping", "block_tables") else np.array(value, np.int32)
    with pytest.raises(ValueError, match=message):
        run.executable.run(dataclasses.replace(step, **{field: arrays}))


def test_too_many_tokens_are_refused() -> None:
    run = sequences(llama())
    with pytest.raises(ValueError, match="33 tokens, but the limit is 32"):
        run.feed({0: [1] * 33})


def test_launch_samples_what_run_computes() -> None:
    program = llama()
    run, other = sequences(program), sequences(program)
    prompts = {0: [5, 6, 7, 8], 1: [9, 10]}
    logits = run.feed(prompts)
    sampling = dataclasses.replace(greedy(len(logits)), num_logprobs=np.full(len(logits), 2, np.int32))
    result = other.executable.collect(other.executable.launch(other.step_input(prompts), sampling))
    np.testing.assert_array_equal(result.token_ids, logits.argmax(1))
    np.testing.assert_array_equal(result.top_ids, np.argsort(-logits, kind="stable")[:, :2])
    exact = logits - np.log(np.exp(logits.astype(np.float64)).sum(1, keepdims=True))
    np.testing.assert_allclose(result.logprobs, exact.max(1), atol=1e-6)


def test_a_step_may_be_launched_again_with_what_its_arrays_hold_now() -> None:
    """Generation fills the same arrays from one token to the next; what they must not change is refused."""
    program = llama()
    run, other = sequences(program), sequences(program)
    step, sampling = run.step_input({0: [5]}), dataclasses.replace(greedy(1), num_logprobs=np.ones(1, np.int32))
    for token_id in (5, 6, 7):
        step.token_ids[:] = token_id
        result = run.executable.collect(run.executable.launch(step, sampling))
        logits = other.feed({0: [token_id]})
        assert result.token_ids.tolist() == result.top_ids[:, 0].tolist() == logits.argmax(1).tolist()
        for counter in (step.positions, step.context_lens, step.slot_mapping[0]):
            counter += 1
    step.token_ids[:] = 999
    with pytest.raises(ValueError, match="token_ids"):
        run.executable.launch(step, sampling)
    step.token_ids[:] = 5
    sampling.num_logprobs[:] = 2
    with pytest.raises(ValueError, match="more alternatives"):
        run.executable.launch(step, sampling)
    sampling.num_logprobs[:] = 1
    sampling.bias_start[:] = (0, 1)
    with pytest.raises(ValueError, match="lengths"):
        run.executable.launch(step, sampling)


def test_many_output_rows_come_in_pieces() -> None:
    """More output rows than fit the logits buffer at once."""
    program = llama()
    weights = dummy_weights({name: decl.shape for name, decl in program.weights.items()}, 1, lambda name, shape: "F32")
    limits = limits_for(program, max_model_len=256, max_num_seqs=1)
    tokens = np.random.default_rng(0).integers(0, program.output.width, 200).tolist()
    whole = Sequences(CpuBackend().load(program, weights, limits), program, limits)
    logits = whole.feed({0: tokens})
    single = Sequences(CpuBackend().load(program, weights, limits), program, limits)
    np.testing.assert_array_equal(single.feed_in_chunks(0, tokens, 50), logits)
    sampled = Sequences(CpuBackend().load(program, weights, limits), program, limits)
    result = sampled.executable.launch(sampled.step_input({0: tokens}), greedy(200))
    np.testing.assert_array_equal(result.token_ids, logits.argmax(1))


def test_a_closed_executable_says_so() -> None:
    run = sequences(llama())
    assert run.executable.description["isa"] == best_isa()
    run.executable.close()
    with pytest.raises(BackendError, match="closed"):
        run.feed({0: [1]})


def test_weights_may_be_views_of_a_mapped_file(tmp_path: Path) -> None:
    """Packing gives the file's pages back; the numbers in them stay readable."""
    program = llama()
    plain = dummy_weights({name: decl.shape for name, decl in program.weights.items()}, 1, lambda name, shape: "F32")
    path = tmp_path / "weights"
    path.write_bytes(b"".join(weight.data.tobytes() for weight in plain.values()))
    mapped: dict[str, Weight] = {}
    with path.open("rb") as file:
        whole = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    at = 0
    for name, weight in plain.items():
        data = whole[at : at + weight.data.nbytes].reshape(weight.data.shape)
        mapped[name] = Weight(weight.format, weight.shape, {"data": data})
        at += weight.data.nbytes
    limits = limits_for(program, max_model_len=64, max_num_seqs=2)
    a = Sequences(CpuBackend().load(program, plain, limits), program, limits).feed({0: [1, 2, 3]})
    b = Sequences(CpuBackend().load(program, mapped, limits), program, limits).feed({0: [1, 2, 3]})
    np.testing.assert_array_equal(a, b)
    for name, weight in plain.items():
        np.testing.assert_array_equal(mapped[name].data, weight.data)


def test_phases_never_share_memory_that_is_live() -> None:
    """Within a phase all inputs and outputs have their own columns; a value keeps its columns until its last reader's phase."""
    for name, arch in architectures().items():
        program = build_program(arch, arch.spec(arch.tiny(), 128))
        lowered = lower(program, lambda weight: True)
        last_phase = {v.id: i for i, phase in enumerate(lowered.phases) for instr in phase.instrs for v in instr.inputs}
        last_phase[program.output.id] = len(lowered.phases)
        live: dict[int, tuple[str, int, int]] = {}
        for index, phase in enumerate(lowered.phases):
            for instr in phase.instrs:
                for value in instr.outputs:
                    slot = lowered.buffers.slots[value.id]
                    for other, (symbol, begin, end) in live.items():
                        overlap = symbol == slot.symbol and begin < slot.offset + slot.columns and slot.offset < end
                        assert not overlap, f"{name}: {instr.op} writes over value {other}"
                    live[value.id] = (slot.symbol, slot.offset, slot.offset + slot.columns)
            live = {v: where for v, where in live.items() if last_phase.get(v, index) > index}
