"""Attention over contexts of several segments: whoever computes which segment, the bits are the same, and right."""

import numpy as np
import pytest

from support.compare import nmse
from support.steps import Sequences, limits_for
from tuili.backends.base import Backend
from tuili.backends.cpu.executor import CpuBackend
from tuili.backends.cpu.native import ISA_NAMES, best_isa
from tuili.backends.reference.executor import ReferenceBackend
from tuili.program.builder import Builder
from tuili.program.program import Program
from tuili.weights.dummy import dummy_weights

LEVELS = ISA_NAMES[: ISA_NAMES.index(best_isa()) + 1]
VOCAB, LENGTH = 50, 1100  # eight segments

#: heads, KV heads, head_dim, window
SHAPES = [(3, 1, 32, None), (7, 1, 64, None), (4, 2, 16, 300), (12, 1, 16, 70)]


def program_of(heads: int, kv_heads: int, head_dim: int, window: int | None) -> Program:
    b = Builder("attention")
    widths = {"q": heads * head_dim, "k": kv_heads * head_dim, "v": kv_heads * head_dim}
    q, k, v = (b.scale(b.embed(b.weight(name, VOCAB, width)), 20.0) for name, width in widths.items())
    out = b.attention(q, k, v, state="kv", head_dim=head_dim, scale=head_dim**-0.5, window=window)
    return b.finish(b.select_rows(out), "hidden")


def sequences(program: Program, backend: Backend) -> Sequences:
    weights = dummy_weights({name: decl.shape for name, decl in program.weights.items()}, 3, lambda name, shape: "F32")
    limits = limits_for(program, max_model_len=LENGTH, max_num_seqs=2, max_tokens=LENGTH)
    return Sequences(backend.load(program, weights, limits), program, limits)


TOKENS = np.random.default_rng(8).integers(0, VOCAB, LENGTH).tolist()


@pytest.mark.parametrize("shape", SHAPES)
def test_shared_segments_equal_a_prompt(shape: tuple[int, int, int, int | None]) -> None:
    program = program_of(*shape)
    whole = sequences(program, CpuBackend(threads=2)).feed({0: TOKENS})
    assert nmse(sequences(program, ReferenceBackend()).feed({0: TOKENS}), whole) <= 1e-10
    for level in LEVELS:
        for threads in (1, 2, 3):
            steps = sequences(program, CpuBackend(level, threads))
            for start in (0, 50, 100, 250, 500, LENGTH - 6):  # a chunk, then single tokens as when decoding
                if start > steps.lengths.get(0, 0):
                    steps.feed({0: TOKENS[steps.lengths.get(0, 0) : start]})
                for position in range(start, start + 5):
                    got = steps.feed({0: TOKENS[position : position + 1]})
                    np.testing.assert_array_equal(got[0], whole[position], f"{level}, {threads} threads, position {position}")


def test_a_long_context_beside_short_ones() -> None:
    program = program_of(4, 1, 64, None)
    base = sequences(program, CpuBackend(threads=1))
    base.feed({0: TOKENS[:900], 1: TOKENS[:5]})
    alone = np.concatenate([base.feed({0: TOKENS[900:901]}), base.feed({1: TOKENS[5:6]})])
    both = sequences(program, CpuBackend(threads=2))
    both.feed({0: TOKENS[:900], 1: TOKENS[:5]})
    np.testing.assert_array_equal(both.feed({0: TOKENS[900:901], 1: TOKENS[5:6]}), alone)
