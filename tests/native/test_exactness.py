"""Batch invariance of whole models on the native backend: a row has the same bits however the work is cut."""

from collections.abc import Callable

import numpy as np
import pytest

from support.compare import cosines
from support.steps import Sequences, limits_for
from tuili.backends.base import Backend
from tuili.backends.cpu.executor import CpuBackend
from tuili.backends.cpu.native import ISA_NAMES, best_isa
from tuili.backends.reference.executor import ReferenceBackend
from tuili.models.load import build_program
from tuili.models.registry import architectures
from tuili.program.program import Program
from tuili.weights.dummy import dummy_weights

LEVELS = ISA_NAMES[: ISA_NAMES.index(best_isa()) + 1]
ARCHITECTURES = sorted(architectures())
LENGTH = 120  # beyond every tiny sliding window


def tiny_program(name: str) -> Program:
    arch = architectures()[name]
    return build_program(arch, arch.spec(arch.tiny(), 256))


def mixed_formats(name: str, shape: tuple[int, ...]) -> str:
    choices = ["Q8_0", "Q4_0", "Q5_1", "F16"] if shape[-1] % 256 else ["Q4_K", "Q6_K", "Q8_0"]
    return choices[sum(name.encode()) % len(choices)] if shape[-1] % 32 == 0 else "F32"


def sequences(program: Program, backend: Backend, formats: Callable[[str, tuple[int, ...]], str] = mixed_formats) -> Sequences:
    shapes = {name: decl.shape for name, decl in program.weights.items()}
    limits = limits_for(program, max_model_len=256, max_num_seqs=4)
    return Sequences(backend.load(program, dummy_weights(shapes, 7, formats), limits), program, limits)


def prompt(program: Program, count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, program.output.width, count).tolist()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_chunks_batches_threads_and_levels_give_the_same_bits(name: str) -> None:
    program = tiny_program(name)
    a, b, c = prompt(program, LENGTH, 1), prompt(program, 45, 2), prompt(program, 17, 3)
    whole = sequences(program, CpuBackend(threads=2)).feed({0: a})
    for size in (1, 16, 50):
        np.testing.assert_array_equal(sequences(program, CpuBackend(threads=2)).feed_in_chunks(0, a, size), whole)
    for level in LEVELS:
        for threads in (1, 2):
            batch = sequences(program, CpuBackend(level, threads))
            batch.feed({1: b[:30]})
            together = batch.feed({2: c, 0: a, 1: b[30:]})
            np.testing.assert_array_equal(together[len(c) : len(c) + len(a)], whole)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_float_weights_equal_the_reference(name: str) -> None:
    program = tiny_program(name)
    a = prompt(program, LENGTH, 4)
    expected = sequences(program, ReferenceBackend(), lambda name, shape: "F32").feed({0: a})
    got = sequences(program, CpuBackend(), lambda name, shape: "F32").feed({0: a})
    # Experts: a tie between two of them may fall differently, so a few rows may differ there.
    assert np.quantile(cosines(expected, got), 0.05) > 0.99999


def test_what_a_block_held_before_does_not_matter() -> None:
    program = tiny_program("llama")
    a = prompt(program, 40, 5)
    clean = sequences(program, CpuBackend())
    expected = clean.feed({0: a})
    dirty = sequences(program, CpuBackend())
    num_blocks = dirty.limits.num_blocks[0]
    blocks = np.arange(num_blocks, dtype=np.int32)
    nans = np.full_like(dirty.executable.read_blocks(0, blocks), 0x7E)  # 0x7e7e is a NaN in half precision
    dirty.executable.write_blocks(0, blocks, nans)
    np.testing.assert_array_equal(dirty.feed({0: a}), expected)


def test_blocks_move_between_executables() -> None:
    program = tiny_program("gemma3")
    a = prompt(program, LENGTH, 6)
    source, target = sequences(program, CpuBackend()), sequences(program, CpuBackend())
    expected = source.feed({0: a[:100]})
    for group, count in enumerate(source.limits.num_blocks):
        blocks = np.arange(count, dtype=np.int32)
        data = source.executable.read_blocks(group, blocks)
        assert data.any()
        target.executable.write_blocks(group, blocks, data)
        np.testing.assert_array_equal(target.executable.read_blocks(group, blocks), data)
    target.lengths[0] = 100
    np.testing.assert_array_equal(target.feed({0: a[100:]}), source.feed({0: a[100:]}))
    assert len(expected) == 100


def test_a_broken_row_does_not_reach_its_neighbours() -> None:
    """NaN weights of one token's embedding: only that token's sequence is lost."""
    program = tiny_program("llama")
    shapes = {name: decl.shape for name, decl in program.weights.items()}
    weights = dummy_weights(shapes, 7, lambda name, shape: "F32")
    table = weights["model.embed_tokens.weight"].data.view(np.float32)
    table[3] = np.nan
    limits = limits_for(program, max_model_len=64, max_num_seqs=4)
    run = Sequences(CpuBackend().load(program, weights, limits), program, limits)
    good, bad = [5, 6, 7, 8], [5, 3, 7, 8]
    alone = run.feed({0: good})
    together = run.feed({1: bad, 2: good})
    np.testing.assert_array_equal(together[4:], alone)
    assert np.isnan(together[3]).any()
