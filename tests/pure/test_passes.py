"""Fusion changes no result; the buffer plan never lets two living values share a place."""

from itertools import pairwise

import numpy as np
import pytest

from support.steps import Sequences, limits_for
from tuili.backends.reference.executor import ReferenceBackend
from tuili.models.registry import architectures
from tuili.program.builder import Builder
from tuili.program.passes.fuse import fuse
from tuili.program.passes.plan import ALIGNMENT, plan
from tuili.program.program import Program, Rows, Value
from tuili.program.verify import verify
from tuili.weights.dummy import dummy_weights

NAMES = sorted(architectures())


def unfused(name: str) -> Program:
    arch = architectures()[name]
    spec = arch.spec(arch.tiny())
    builder = Builder(name)
    return builder.finish(arch.build(builder, spec))


def ops_of(program: Program) -> list[str]:
    return [instr.op for instr in program.instrs]


@pytest.mark.parametrize("name", NAMES)
def test_a_fused_program_gives_the_same_logits(name: str) -> None:
    plain = unfused(name)
    fused = fuse(plain)
    verify(fused)
    assert len(fused.instrs) < len(plain.instrs)
    weights = dummy_weights({n: d.shape for n, d in plain.weights.items()}, 1, lambda n, shape: "F32")
    tokens = np.random.default_rng(2).integers(0, 320, 40).tolist()
    results = []
    for program in (plain, fused):
        limits = limits_for(program, max_model_len=64, max_num_seqs=1)
        results.append(Sequences(ReferenceBackend().load(program, weights, limits), program, limits).feed({0: tokens}))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-5)


def test_llama_fuses_to_the_shape_that_backends_expect() -> None:
    ops = ops_of(fuse(unfused("llama")))
    assert ops.count("gate_up_act") == 2
    assert ops.count("add_rms_norm") == 4  # two a layer, the last one being the final norm
    assert ops.count("linear") == 2 * 3 + 1
    assert "act_mul" not in ops and "add" not in ops


def test_segments_keep_order_and_biases() -> None:
    b = Builder("segments")
    x = b.embed(b.weight("embed", 8, 16))
    q = b.linear(x, b.weight("q", 16, 16), b.weight("q.bias", 16), split="column")
    k = b.linear(x, b.weight("k", 16, 16), split="column")
    other = b.linear(x, b.weight("router", 16, 16))
    program = fuse(b.finish(b.add(b.add(q, k), other)))
    verify(program)
    merged = program.instrs[1]
    assert (merged.weights, merged.attrs["biases"], merged.outputs) == (("q", "q.bias", "k"), (True, False), (q, k))
    assert program.instrs[2].outputs == (other,)  # another split stays apart


def test_what_is_used_elsewhere_is_not_fused_away() -> None:
    b = Builder("shared")
    x = b.embed(b.weight("embed", 8, 16))
    gate, up = b.linear(x, b.weight("gate", 16, 16)), b.linear(x, b.weight("up", 16, 16))
    program = fuse(b.finish(b.add(b.act_mul(gate, up, "silu"), gate)))
    verify(program)
    assert ops_of(program) == ["embed", "linear", "act_mul", "add"]


def test_a_sum_read_by_others_survives_its_fusion_with_a_norm() -> None:
    b = Builder("residual")
    x = b.embed(b.weight("embed", 8, 16))
    total = b.add(x, b.scale(x, 2.0))
    program = fuse(b.finish(b.add(total, b.rms_norm(total, b.weight("norm", 16), 1e-6))))
    verify(program)
    assert ops_of(program) == ["embed", "scale", "add_rms_norm", "add"]


def test_norms_of_heads_are_not_fused_with_the_sum() -> None:
    b = Builder("heads")
    x = b.embed(b.weight("embed", 8, 16))
    program = fuse(b.finish(b.rms_norm(b.add(x, x), b.weight("norm", 8), 1e-6)))
    assert ops_of(program) == ["embed", "add", "rms_norm"]


@pytest.mark.parametrize("name", NAMES)
def test_living_values_never_overlap(name: str) -> None:
    program = fuse(unfused(name))
    planned = plan(program)
    reads = {v.id: i for i, instr in enumerate(program.instrs) for v in (*instr.inputs, *instr.outputs)}
    reads[program.output.id] = len(program.instrs)
    living: dict[int, Value] = {}
    for index, instr in enumerate(program.instrs):
        living |= {value.id: value for value in instr.outputs}
        for symbol in "TR":
            slots = sorted(
                (planned.slots[i].offset, planned.slots[i].columns) for i in living if planned.slots[i].symbol == symbol
            )
            assert all(start + columns <= after for (start, columns), (after, _) in pairwise(slots))
            assert all(start + columns <= planned.columns[symbol] for start, columns in slots)
        living = {i: value for i, value in living.items() if reads[i] > index}
    for value in (v for instr in program.instrs for v in instr.outputs):
        slot = planned.slots[value.id]
        assert slot.columns >= value.width * value.rows.multiple
        assert slot.offset % ALIGNMENT == slot.columns % ALIGNMENT == 0


def test_buffers_are_reused() -> None:
    program = fuse(unfused("llama"))
    total = sum(slot.columns for slot in plan(program).slots.values() if slot.symbol == "T")
    assert plan(program).columns["T"] < total / 3
    assert plan(program).arena_bytes(10, 2) == 4 * (10 * plan(program).columns["T"] + 2 * plan(program).columns["R"])


def test_routing_gets_room_for_its_expert_ids() -> None:
    program = fuse(unfused("qwen3_moe"))
    routing = next(instr for instr in program.instrs if instr.op == "moe_route")
    b = Builder("wide")
    x = b.embed(b.weight("embed", 8, 64))
    wide = b.finish(b.moe_route(x, 20, normalise=True))
    assert routing.outputs[0].rows == Rows() and plan(wide).slots[wide.output.id].columns == 48  # 2 × 20, in lines of 16
