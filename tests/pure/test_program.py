"""Builder and verifier: what a program is, and that every broken one is refused by name and line."""

import dataclasses
from collections.abc import Callable

import pytest

from tuili.models.llama import spec, tiny
from tuili.models.load import build_program
from tuili.models.registry import architectures
from tuili.program.builder import Builder
from tuili.program.dump import dump
from tuili.program.ops import OPS
from tuili.program.program import Instr, Program, RopeSpec, Rows, StateDecl, Value, WeightDecl
from tuili.program.verify import InvalidProgram, verify

HIDDEN = 16


def small(edit: Callable[[Builder, Value], Value] | None = None) -> Program:
    """embed -> (edit) -> select_rows -> linear, with a mistake made by ``edit``."""
    b = Builder("small")
    table = b.weight("embed", 32, HIDDEN)
    x = b.embed(table)
    if edit is not None:
        x = edit(b, x)
    return b.finish(b.linear(b.select_rows(x), table))


def test_a_program_holds_what_was_said() -> None:
    program = small()
    verify(program)
    assert [instr.op for instr in program.instrs] == ["embed", "select_rows", "linear"]
    assert program.weights == {"embed": WeightDecl("embed", (32, HIDDEN))}
    assert program.output == Value(2, Rows("R"), 32)
    assert program.instrs[0].origin.startswith("test_program.py:")


def test_every_op_but_the_reserved_and_the_ranks_has_a_builder_method() -> None:
    reserved = {"conv1d_state", "ssm_scan", "all_reduce", "all_gather"}
    for op in OPS.values():
        assert op.fused or op.name in reserved or hasattr(Builder, op.name), op.name


def test_a_shared_block_is_named_with_the_model_file_that_used_it() -> None:
    program = build_program(architectures()["llama"], spec(tiny()))
    assert all(instr.origin.startswith("llama.py:") and " via blocks.py:" in instr.origin for instr in program.instrs)


def test_a_weight_is_declared_once() -> None:
    b = Builder("twice")
    b.weight("w", 2, 2)
    with pytest.raises(ValueError, match=r"test_program.py:\d+: weight w is declared twice"):
        b.weight("w", 2, 2)


ROPE = RopeSpec(4, (1.0, 0.1))


def attention(b: Builder, x: Value, **changes: object) -> Value:
    arguments = {"state": "kv", "head_dim": 4, "scale": 0.5} | changes
    return b.attention(x, x, x, **arguments)  # type: ignore[arg-type]


def routed(b: Builder, x: Value) -> tuple[Value, Value]:
    routing = b.moe_route(b.linear(x, b.weight("router", 4, HIDDEN)), 2, normalise=True)
    return routing, b.moe_linear(x, routing, b.weight("experts", 4, HIDDEN, HIDDEN))


MISTAKES: dict[str, tuple[Callable[[Builder, Value], Value], str]] = {
    "linear width": (lambda b, x: b.linear(x, b.weight("w", HIDDEN, 8)), r"linear\): weight w is \[16, 8\], needs \[16, 16\]"),
    "bias": (lambda b, x: b.linear(x, b.weight("w", HIDDEN, HIDDEN), b.weight("v", 8)), r"weight v is \[8\], needs \[16\]"),
    "split": (lambda b, x: b.linear(x, b.weight("w", HIDDEN, HIDDEN), split="rows"), "split is 'rows'"),  # type: ignore[arg-type]
    "norm group": (lambda b, x: b.rms_norm(x, b.weight("w", 5), 1e-6), "width 16 is not a multiple of group 5"),
    "norm eps": (lambda b, x: b.rms_norm(x, b.weight("w", HIDDEN), 0.0), "eps is 0.0"),
    "layer norm": (lambda b, x: b.layer_norm(x, b.weight("w", 8), b.weight("v", 4), 1e-6), r"weight v is \[4\], needs \[8\]"),
    "rope frequencies": (lambda b, x: b.rope(x, RopeSpec(4, (1.0,)), 8), "rotates 4 of 8 dimensions with 1 frequencies"),
    "rope dims": (lambda b, x: b.rope(x, ROPE, 2), "rotates 4 of 2"),
    "rope rows": (lambda b, x: b.rope(b.select_rows(x), ROPE, 8), "works on token rows"),
    "heads": (lambda b, x: attention(b, x, head_dim=5), "q is 16 wide, needs 3 heads × 5"),
    "window": (lambda b, x: attention(b, x, window=0), "window is 0"),
    "act": (lambda b, x: b.act_mul(x, x, "relu"), "act is 'relu'"),
    "add": (lambda b, x: b.add(x, b.linear(x, b.weight("w", 8, HIDDEN))), "inputs differ"),
    "experts": (lambda b, x: b.combine(*reversed(routed(b, b.linear(x, b.weight("w", 8, HIDDEN))))), "weight router"),
    "top_k": (lambda b, x: b.moe_route(x, 17, normalise=True), "picks 17 of 16 experts"),
    "scoring": (lambda b, x: b.moe_route(x, 2, normalise=True, scoring="max"), "scoring is 'max'"),
    "combine": (lambda b, x: b.combine(x, routed(b, x)[0]), "y has T rows, needs 2T"),
    "moe rows": (lambda b, x: b.moe_linear(b.select_rows(x), routed(b, x)[0], b.weight("w", 4, 8, HIDDEN)), "x has R rows"),
    "split widths": (lambda b, x: b.split(x, (4, 4))[0], r"widths \(4, 4\) do not add up to 16"),
    "concat rows": (lambda b, x: b.concat(x, b.select_rows(x)), "different rows"),
    "unused weight": (lambda b, x: (b.weight("idle", 3), x)[1], "never used: idle"),
    "state twice": (lambda b, x: attention(b, attention(b, x)), "state kv is used 2 times"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_with_the_line_that_made_them(name: str) -> None:
    edit, message = MISTAKES[name]
    with pytest.raises(InvalidProgram, match=message) as caught:
        verify(small(edit))
    assert "test_program.py:" in str(caught.value) or name == "unused weight"


def replace_instr(program: Program, index: int, **changes: object) -> Program:
    instrs = list(program.instrs)
    instrs[index] = dataclasses.replace(instrs[index], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(program, instrs=tuple(instrs))


def test_values_are_written_once_and_before_they_are_read() -> None:
    program = small()
    with pytest.raises(InvalidProgram, match="reads value 0 before anything wrote it"):
        verify(dataclasses.replace(program, instrs=program.instrs[1:]))
    with pytest.raises(InvalidProgram, match="writes value 0 again"):
        verify(dataclasses.replace(program, instrs=(program.instrs[0], *program.instrs)))
    with pytest.raises(InvalidProgram, match="nothing writes the output"):
        verify(dataclasses.replace(program, output=Value(9, Rows("R"), 32)))


def test_ops_attributes_and_counts_are_checked() -> None:
    program = small()
    with pytest.raises(InvalidProgram, match="there is no such op; known: embed"):
        verify(replace_instr(program, 1, op="reshape"))
    with pytest.raises(InvalidProgram, match="reserved"):
        verify(replace_instr(program, 1, op="ssm_scan"))
    with pytest.raises(InvalidProgram, match="lacks split"):
        verify(replace_instr(program, 2, attrs={"biases": (False,)}))
    with pytest.raises(InvalidProgram, match="has 0 inputs, needs 1"):
        verify(replace_instr(program, 2, inputs=()))
    with pytest.raises(InvalidProgram, match="has 0 weights, needs 1"):
        verify(replace_instr(program, 2, weights=()))
    with pytest.raises(InvalidProgram, match="weight other is not declared"):
        verify(replace_instr(program, 2, weights=("other",)))
    with pytest.raises(InvalidProgram, match=r"output 0 is \[R, 33\]|weight embed is"):
        verify(replace_instr(program, 2, outputs=(Value(2, Rows("R"), 33),)))


def test_biases_of_experts_are_refused() -> None:
    program = small(lambda b, x: b.combine(*reversed(routed(b, x))))
    index = next(i for i, instr in enumerate(program.instrs) if instr.op == "moe_linear")
    instr = program.instrs[index]
    declared = {**program.weights, "bias": WeightDecl("bias", (4, HIDDEN))}
    biased = replace_instr(program, index, weights=(*instr.weights, "bias"), attrs={**instr.attrs, "biases": (True,)})
    with pytest.raises(InvalidProgram, match="no backend adds biases of experts"):
        verify(dataclasses.replace(biased, weights=declared))


def test_states_are_declared_used_and_fitting() -> None:
    program = small(attention)
    verify(program)
    with pytest.raises(InvalidProgram, match="state 'kv' is not declared"):
        verify(dataclasses.replace(program, states=()))
    with pytest.raises(InvalidProgram, match="does not fit"):
        verify(dataclasses.replace(program, states=(StateDecl("kv", "full", 2, 4),)))
    with pytest.raises(InvalidProgram, match="never used"):
        verify(dataclasses.replace(program, states=(*program.states, StateDecl("idle", "full", 4, 4))))


def test_layers_that_differ_in_window_or_shape_get_their_own_state_group() -> None:
    program = build_program(architectures()["gemma3"], architectures()["gemma3"].spec(architectures()["gemma3"].tiny()))
    groups = program.state_groups()
    assert [(group.kind, group.window, len(group.states)) for group in groups] == [("window", 24, 6), ("full", None, 1)]


def test_the_listing_says_each_layer_once_and_counts_what_varies() -> None:
    program = build_program(architectures()["gemma3"], architectures()["gemma3"].spec(architectures()["gemma3"].tiny()))
    formats = {name: "Q4_K" if ".layers.2." in name else "Q8_0" for name in program.weights}
    sizes = dict.fromkeys(program.weights, 1024)
    text = dump(program, formats, sizes)
    assert len(text.splitlines()) < 60
    assert "layers 1-5 (5x)" in text
    assert "q_proj Q8_0 ×4 Q4_K ×1" in text
    assert "window 24" in text
    assert "6 layers, 1 heads × 32, the last 24 positions" in text
    assert "[5 KiB]" in text  # one weight of five layers


def test_instructions_compare_by_value() -> None:
    assert Instr("add", (), ()) == Instr("add", (), ())
