"""Fusion: fewer, larger instructions that compute the same numbers.

* linears that read the same value become one ``linear`` with a segment each (q, k and v share one quantised activation);
* ``act_mul`` of two bias-free linears of the same value becomes ``gate_up_act``;
* ``add`` followed by an ``rms_norm`` of the sum becomes ``add_rms_norm``.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

from tuili.program.program import Instr, Program, Value


def fuse(program: Program) -> Program:
    """The program with every fusion applied; values keep their numbers."""
    instrs = _fuse_gate_up(program.instrs, program.output)
    instrs = _merge_linears(instrs)
    instrs = _fuse_add_norm(instrs)
    return replace(program, instrs=tuple(instrs))


def _num_uses(instrs: Iterable[Instr], output: Value) -> Counter[int]:
    uses = Counter(value.id for instr in instrs for value in instr.inputs)
    uses[output.id] += 1
    return uses


def _fuse_gate_up(instrs: Iterable[Instr], output: Value) -> list[Instr]:
    instrs = list(instrs)
    uses = _num_uses(instrs, output)
    plain = {i.outputs[0].id: i for i in instrs if i.op == "linear" and i.attrs["biases"] == (False,)}
    fused: dict[int, Instr] = {}
    dropped: set[int] = set()
    for instr in instrs:
        if instr.op != "act_mul":
            continue
        gate, up = (plain.get(value.id) for value in instr.inputs)
        if gate is None or up is None or gate is up or gate.inputs != up.inputs:
            continue
        if any(uses[value.id] != 1 for value in instr.inputs) or gate.attrs["split"] != up.attrs["split"]:
            continue
        attrs = {"act": instr.attrs["act"], "split": gate.attrs["split"]}
        fused[instr.outputs[0].id] = Instr(
            "gate_up_act", gate.inputs, instr.outputs, gate.weights + up.weights, attrs, origin=instr.origin
        )
        dropped |= {gate.outputs[0].id, up.outputs[0].id}
    return [fused.get(i.outputs[0].id, i) for i in instrs if i.outputs[0].id not in dropped]


def _merge_linears(instrs: list[Instr]) -> list[Instr]:
    groups: dict[tuple[int, object], list[Instr]] = defaultdict(list)
    for instr in instrs:
        if instr.op == "linear":
            groups[instr.inputs[0].id, instr.attrs["split"]].append(instr)
    merged: dict[int, Instr] = {}
    dropped: set[int] = set()
    for members in groups.values():
        if len(members) == 1:
            continue
        first = members[0]
        merged[first.outputs[0].id] = replace(
            first,
            outputs=tuple(value for member in members for value in member.outputs),
            weights=tuple(name for member in members for name in member.weights),
            attrs={**first.attrs, "biases": tuple(b for member in members for b in _biases(member))},
        )
        dropped |= {member.outputs[0].id for member in members[1:]}
    return [merged.get(i.outputs[0].id, i) for i in instrs if i.outputs[0].id not in dropped]


def _biases(instr: Instr) -> tuple[bool, ...]:
    biases = instr.attrs["biases"]
    assert isinstance(biases, tuple)
    return biases


def _fuse_add_norm(instrs: list[Instr]) -> list[Instr]:
    norms: dict[int, Instr] = {}
    for instr in instrs:
        if instr.op == "rms_norm" and instr.attrs["group"] == instr.inputs[0].width:
            norms.setdefault(instr.inputs[0].id, instr)
    result: list[Instr] = []
    dropped: set[int] = set()
    for instr in instrs:
        norm = norms.get(instr.outputs[0].id) if instr.op == "add" else None
        if norm is not None:
            outputs = instr.outputs + norm.outputs
            result.append(Instr("add_rms_norm", instr.inputs, outputs, norm.weights, norm.attrs, origin=norm.origin))
            dropped.add(norm.outputs[0].id)
        elif instr.outputs[0].id not in dropped:
            result.append(instr)
    return result
