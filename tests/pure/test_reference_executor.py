"""The reference executable: its promises beside the numbers, which the op and model tests check."""

import dataclasses

import numpy as np
import pytest

from support.steps import Sequences, limits_for
from tuili.backends.reference.executor import ReferenceBackend
from tuili.backends.reference.sampler import greedy
from tuili.errors import BackendError
from tuili.models.load import build_program
from tuili.models.registry import architectures
from tuili.program.program import BLOCK_SIZE, Program
from tuili.weights.dummy import dummy_weights
from tuili.weights.source import Weight


def model(name: str = "gemma3") -> tuple[Program, dict[str, Weight]]:
    arch = architectures()[name]
    program = build_program(arch, arch.spec(arch.tiny()))
    return program, dummy_weights({n: d.shape for n, d in program.weights.items()}, 1, lambda n, shape: "Q8_0")


def sequences(program: Program, weights: dict[str, Weight]) -> Sequences:
    limits = limits_for(program, max_model_len=64, max_num_seqs=2)
    return Sequences(ReferenceBackend().load(program, weights, limits), program, limits)


def test_blocks_move_to_another_executable_and_back_to_the_same_logits() -> None:
    program, weights = model()
    prompt = np.random.default_rng(0).integers(0, 320, 40).tolist()
    first, second = sequences(program, weights), sequences(program, weights)
    first.feed({0: prompt})
    costs = ReferenceBackend().kv_bytes_per_block(program)
    for group, cost in enumerate(costs):
        blocks = np.arange(first.limits.num_blocks[group], dtype=np.int32)[::-1]
        data = first.executable.read_blocks(group, blocks)
        assert data.shape == (len(blocks), cost) and data.dtype == np.uint8
        second.executable.write_blocks(group, blocks, data)
    second.lengths[0] = len(prompt)
    np.testing.assert_array_equal(second.feed({0: [7]}), first.feed({0: [7]}))


def test_a_block_costs_what_its_keys_and_values_take_in_f16() -> None:
    program, _ = model()
    window, full = program.state_groups()
    per_layer = 2 * 2 * BLOCK_SIZE * 1 * 32
    assert ReferenceBackend().kv_bytes_per_block(program) == (len(window.states) * per_layer, len(full.states) * per_layer)


def test_launch_samples_what_run_returns() -> None:
    program, weights = model("llama")
    run, launch = sequences(program, weights), sequences(program, weights)
    logits = run.feed({0: [1, 2, 3], 1: [4]}, all_rows=False)
    executable = launch.executable
    result = executable.collect(executable.launch(launch.step_input({0: [1, 2, 3], 1: [4]}, all_rows=False), greedy(2)))
    assert result.token_ids.tolist() == logits.argmax(1).tolist()


def test_what_is_missing_is_named_and_refused() -> None:
    program, weights = model("llama")
    name = "model.norm.weight"
    broken = weights | {name: dataclasses.replace(weights[name], format="IQ1_S")}
    formats = {n: weight.format for n, weight in broken.items()}
    (problem,) = ReferenceBackend().missing(program, formats)
    assert "IQ1_S" in problem
    with pytest.raises(BackendError, match=r"cannot run llama: .*IQ1_S"):
        sequences(program, broken)
    strange = dataclasses.replace(program, instrs=(dataclasses.replace(program.instrs[0], op="ssm_scan"), *program.instrs[1:]))
    assert ReferenceBackend().missing(strange, {}) == ["op ssm_scan has no reference function"]


def test_a_step_beyond_the_limits_is_our_mistake() -> None:
    program, weights = model("llama")
    run = sequences(program, weights)
    run.executable.limits = dataclasses.replace(run.limits, max_num_batched_tokens=4)  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="5 tokens in a step"):
        run.feed({0: [1, 2, 3, 4, 5]})
