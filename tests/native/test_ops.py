"""Every op of the table on every ISA level against the reference backend, within the tolerance that the op owns."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from support.compare import nmse
from support.steps import Sequences, limits_for
from tuili.backends.cpu.executor import CpuBackend
from tuili.backends.cpu.native import ISA_NAMES, best_isa
from tuili.backends.reference.executor import ReferenceBackend
from tuili.program.builder import Builder
from tuili.program.ops import OPS
from tuili.program.passes.fuse import fuse
from tuili.program.program import Program, RopeSpec, Value
from tuili.program.verify import verify
from tuili.weights.dummy import dummy_weights

LEVELS = ISA_NAMES[: ISA_NAMES.index(best_isa()) + 1]
VOCAB = 50
RESERVED = {"conv1d_state", "ssm_scan"}  # no model uses them yet
COLLECTIVES = {"all_reduce", "all_gather"}  # a program of one rank has none
QUANTISED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]


def x(b: Builder, width: int, name: str = "x") -> Value:
    """A random [T, width] input: rows of an exact table."""
    return b.embed(b.weight(f"{name}.table", VOCAB, width))


def linear(b: Builder) -> Value:
    source = x(b, 256)
    outputs = [
        b.linear(source, b.weight("q.weight", 48, 256), b.weight("q.bias", 48)),
        b.linear(source, b.weight("k.weight", 23, 256)),
    ]
    return b.concat(*outputs)


def attention(
    b: Builder, heads: int, kv_heads: int, head_dim: int, window: int | None = None, softcap: float | None = None
) -> Value:
    q, k, v = x(b, heads * head_dim, "q"), x(b, kv_heads * head_dim, "k"), x(b, kv_heads * head_dim, "v")
    q, k = b.scale(q, 30.0), b.scale(k, 20.0)  # scores that differ
    return b.attention(q, k, v, state="kv", head_dim=head_dim, scale=head_dim**-0.5, window=window, softcap=softcap)


def rope(b: Builder) -> Value:
    spec = RopeSpec(48, tuple(10000.0 ** (-i / 24) for i in range(24)), 1.2)
    return b.rope(x(b, 3 * 64), spec, 64)


def experts(b: Builder, *, normalise: bool = True, scoring: str = "softmax") -> Value:
    source = x(b, 256)
    logits = b.scale(b.linear(source, b.weight("router.weight", 8, 256)), 5.0)
    routing = b.moe_route(logits, 3, normalise=normalise, scoring=scoring)
    gate = b.moe_linear(source, routing, b.weight("gate.weight", 8, 256, 256))
    up = b.moe_linear(source, routing, b.weight("up.weight", 8, 256, 256))
    down = b.moe_linear(b.act_mul(gate, up, "silu"), routing, b.weight("down.weight", 8, 40, 256))
    return b.combine(down, routing)


def add_rms_norm(b: Builder) -> Value:
    total = b.add(x(b, 100, "a"), x(b, 100, "b"))
    return b.concat(total, b.rms_norm(total, b.weight("norm.weight", 100), 1e-6))


def gate_up_act(b: Builder) -> Value:
    source = x(b, 256)
    gate, up = b.linear(source, b.weight("gate.weight", 40, 256)), b.linear(source, b.weight("up.weight", 40, 256))
    return b.act_mul(gate, up, "gelu")


def split(b: Builder) -> Value:
    parts = b.split(x(b, 60), (16, 7, 37))
    return b.concat(parts[2], parts[0])


@dataclass(frozen=True)
class Case:
    """``op``: the one whose tolerance applies. ``formats``: of the matrices, one test each."""

    op: str
    build: Callable[[Builder], Value]
    formats: tuple[str, ...] = ("F32",)


LINEAR_FORMATS = ("F32", "F16", "BF16", *QUANTISED)

CASES = {
    "embed": Case("embed", lambda b: x(b, 256), ("F32", "F16", "BF16", *QUANTISED)),
    "linear": Case("linear", linear, LINEAR_FORMATS),
    "rms_norm": Case("rms_norm", lambda b: b.rms_norm(x(b, 96), b.weight("norm.weight", 96), 1e-5)),
    "rms_norm of heads": Case("rms_norm", lambda b: b.rms_norm(x(b, 160), b.weight("norm.weight", 20), 1e-5)),
    "layer_norm": Case("layer_norm", lambda b: b.layer_norm(x(b, 100), b.weight("n.weight", 100), b.weight("n.bias", 100), 1e-5)),
    "layer_norm without shift": Case("layer_norm", lambda b: b.layer_norm(x(b, 96), b.weight("n.weight", 32), None, 1e-5)),
    "rope": Case("rope", rope),
    "attention": Case("attention", lambda b: attention(b, 6, 2, 64)),
    "attention with one key head": Case("attention", lambda b: attention(b, 40, 1, 16)),
    "attention with a window": Case("attention", lambda b: attention(b, 4, 4, 32, window=19)),
    "attention with a softcap": Case("attention", lambda b: attention(b, 4, 2, 128, window=50, softcap=3.0)),
    "attention with wide heads": Case("attention", lambda b: attention(b, 4, 1, 256)),
    "act_mul silu": Case("act_mul", lambda b: b.act_mul(b.scale(x(b, 99, "a"), 90.0), x(b, 99, "b"), "silu")),
    "act_mul gelu": Case("act_mul", lambda b: b.act_mul(b.scale(x(b, 99, "a"), 50.0), x(b, 99, "b"), "gelu")),
    "act_mul gelu_tanh": Case("act_mul", lambda b: b.act_mul(b.scale(x(b, 99, "a"), 50.0), x(b, 99, "b"), "gelu_tanh")),
    "add": Case("add", lambda b: b.add(x(b, 37, "a"), x(b, 37, "b"))),
    "scale": Case("scale", lambda b: b.scale(x(b, 37), 11.3)),
    "softcap": Case("softcap", lambda b: b.softcap(b.scale(x(b, 77), 400.0), 30.0)),
    "moe": Case("moe_linear", experts, ("F16", "Q8_0", "Q4_K")),
    "moe_route sigmoid": Case("moe_linear", lambda b: experts(b, normalise=False, scoring="sigmoid")),
    "split and concat": Case("split", split),
    "add_rms_norm": Case("add_rms_norm", add_rms_norm),
    "gate_up_act": Case("gate_up_act", gate_up_act, LINEAR_FORMATS),
}


def program_of(build: Callable[[Builder], Value]) -> Program:
    b = Builder("case")
    program = fuse(b.finish(b.select_rows(build(b)), "hidden"))
    verify(program)
    return program


def sequences(program: Program, backend: CpuBackend | ReferenceBackend, fmt: str) -> Sequences:
    def format_for(name: str, shape: tuple[int, ...]) -> str:
        exact = (name.endswith("table") and len(program.instrs) > 2) or name == "router.weight"  # inputs, and what decides
        return "F32" if exact else fmt

    shapes = {name: decl.shape for name, decl in program.weights.items()}
    limits = limits_for(program, max_model_len=160, max_num_seqs=3)
    return Sequences(backend.load(program, dummy_weights(shapes, 11, format_for), limits), program, limits)


def outputs(run: Sequences) -> np.ndarray:
    """Two sequences: a prompt, then a mixed step of a chunk, a single token and a new prompt."""
    tokens = np.random.default_rng(5).integers(0, VOCAB, 200).tolist()
    first = run.feed({0: tokens[:70], 1: tokens[70:100]})
    second = run.feed({0: tokens[100:131], 1: tokens[131:132], 2: tokens[132:173]})
    return np.concatenate([first, second])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("name", "fmt"), [(name, fmt) for name, case in CASES.items() for fmt in case.formats])
def test_op_equals_reference(name: str, fmt: str, level: str) -> None:
    case = CASES[name]
    program = program_of(case.build)
    assert case.op in {instr.op for instr in program.instrs}
    expected = outputs(sequences(program, ReferenceBackend(), fmt))
    got = outputs(sequences(program, CpuBackend(level, threads=2), fmt))
    assert nmse(expected, got) <= OPS[case.op].max_nmse
    if case.op == "attention":  # both sides read the same half-precision keys and values
        assert nmse(expected, got) <= 1e-10


def test_every_op_has_a_case() -> None:
    covered = {instr.op for case in CASES.values() for instr in program_of(case.build).instrs}
    assert covered == set(OPS) - RESERVED - COLLECTIVES


@pytest.mark.parametrize("name", CASES)
def test_levels_and_thread_counts_give_the_same_bits(name: str) -> None:
    case = CASES[name]
    program = program_of(case.build)
    fmt = case.formats[-1]
    base = outputs(sequences(program, CpuBackend(LEVELS[-1], threads=1), fmt))
    for level in LEVELS:
        for threads in (1, 2, 3):
            np.testing.assert_array_equal(outputs(sequences(program, CpuBackend(level, threads), fmt)), base)
