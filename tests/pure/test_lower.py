"""What the native backend makes of a program before anything native sees it."""

import pytest

from tuili.backends.cpu.lower import lower
from tuili.program.builder import Builder
from tuili.program.program import Program


def gated(*, experts_too: bool) -> Program:
    """A gated activation that a linear reads, and before it, if asked for, experts."""
    b = Builder("gated")
    x = b.embed(b.weight("table", 32, 64))
    y = b.act_mul(x, x, "silu")
    mixed = x
    if experts_too:
        routing = b.moe_route(b.linear(x, b.weight("router", 4, 64)), 2, normalise=True)
        mixed = b.combine(b.moe_linear(y, routing, b.weight("experts", 4, 64, 64)), routing)
    out = b.add(mixed, b.linear(y, b.weight("down", 64, 64)))
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
