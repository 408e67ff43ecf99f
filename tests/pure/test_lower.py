"""What the native backend makes of a program before anything native sees it."""

import pytest

from tuili.backends.cpu.lower import FINE_WIDTH, lower
from tuili.program.builder import Builder
from tuili.program.program import Program


def gated(*, experts_too: bool = False, width: int = 64) -> Program:
    """A gated activation that a linear reads, and before it, if asked for, experts."""
    b = Builder("gated")
    x = b.embed(b.weight("table", 32, width))
    y = b.act_mul(x, x, "silu")
    mixed = x
    if experts_too:
        routing = b.moe_route(b.linear(x, b.weight("router", 4, width)), 2, normalise=True)
        mixed = b.combine(b.moe_linear(y, routing, b.weight("experts", 4, width, width)), routing)
    out = b.add(mixed, b.linear(y, b.weight("down", width, width)))
    return b.finish(b.select_rows(out), "hidden")


@pytest.mark.parametrize("experts_too", [False, True])
def test_who_reads_a_quantised_value_reads_the_form_it_was_made_in(experts_too: bool) -> None:
    instrs = [instr for phase in lower(gated(experts_too=experts_too), lambda weight: True).phases for instr in phase.instrs]
    made: dict[int, object] = {}
    for instr in instrs:
        if instr.op == "quantise":
            made = {instr.inputs[0].id: instr.attrs["fine"]}
        elif instr.op in ("linear", "moe_linear"):
            assert made[instr.inputs[0].id] == instr.attrs.get("fine", False), instr.op
    down = next(instr for instr in instrs if instr.op == "linear" and instr.weights == ("down",))
    assert down.attrs["fine"] is not experts_too


@pytest.mark.parametrize("width", [FINE_WIDTH - 64, FINE_WIDTH])
def test_only_narrow_gated_activations_are_read_with_a_second_term(width: int) -> None:
    instrs = [instr for phase in lower(gated(width=width), lambda weight: True).phases for instr in phase.instrs]
    assert [instr.attrs["fine"] for instr in instrs if instr.weights == ("down",)] == [width < FINE_WIDTH]
