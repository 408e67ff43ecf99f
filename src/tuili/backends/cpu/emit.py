"""Writes a lowered program into the native executor: one small function an op."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tuili.backends.cpu.lower import Lowered, segments_of
from tuili.program.program import Instr, Program, RopeSpec

if TYPE_CHECKING:
    from tuili.backends.cpu.native import Executor

#: As in native/kernels/linear.h.
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2}
SCORINGS = ("softmax", "sigmoid")
NONE = -1


@dataclass(frozen=True, slots=True)
class Bound:
    """Native ids: ``matrices``, ``tables`` and ``vectors`` by weight name, ``values`` by value id, ``states`` as (group, layer in
    it)."""

    executor: "Executor"
    matrices: Mapping[str, int]
    tables: Mapping[str, int]
    vectors: Mapping[str, int]
    values: Mapping[int, int]
    states: Mapping[str, tuple[int, int]]
    ropes: dict[tuple[RopeSpec, int], int]

    def rope(self, spec: RopeSpec, axis: int) -> int:
        """One table of cosines and sines for all layers that rotate alike."""
        if (spec, axis) not in self.ropes:
            self.ropes[spec, axis] = self.executor.add_rope(spec.inverse_frequencies, spec.magnitude, axis)
        return self.ropes[spec, axis]


@dataclass(frozen=True, slots=True)
class Op:
    """One instruction and where its operands are."""

    bound: Bound
    per_output: bool
    instr: Instr

    @property
    def executor(self) -> "Executor":
        return self.bound.executor

    @property
    def attrs(self) -> Mapping[str, Any]:
        return self.instr.attrs

    def input(self, index: int = 0) -> int:
        return self.bound.values[self.instr.inputs[index].id]

    def output(self, index: int = 0) -> int:
        return self.bound.values[self.instr.outputs[index].id]

    def inputs(self) -> list[int]:
        return [self.bound.values[value.id] for value in self.instr.inputs]

    def outputs(self) -> list[int]:
        return [self.bound.values[value.id] for value in self.instr.outputs]

    def vector(self, index: int) -> int:
        return self.bound.vectors[self.instr.weights[index]]

    def matrix(self, index: int) -> int:
        return self.bound.matrices[self.instr.weights[index]]

    def state(self) -> tuple[int, int]:
        assert self.instr.state is not None
        return self.bound.states[self.instr.state]

    def segments(self) -> list[tuple[int, int, int]]:
        return [
            (self.bound.matrices[matrix], NONE if bias is None else self.bound.vectors[bias], out)
            for (matrix, bias), out in zip(segments_of(self.instr), self.outputs(), strict=True)
        ]


def emit(program: Program, lowered: Lowered, bound: Bound, *, max_tokens: int, max_outputs_at_once: int) -> None:
    """Fill the executor's plan and finish it."""
    for phase in lowered.phases:
        if phase.is_rows:
            bound.executor.begin_rows(phase.per_output, phase.cost)
        for instr in phase.instrs:
            _EMIT[instr.op](Op(bound, phase.per_output, instr))
    columns = lowered.buffers.columns
    output = bound.values[program.output.id]
    bound.executor.finish(output, columns["T"], columns["R"], max_tokens, max_outputs_at_once)


def _embed(o: Op) -> None:
    (table,) = o.instr.weights
    if table in o.bound.tables:
        o.executor.embed_stored(o.bound.tables[table], o.output())
    else:
        o.executor.embed(o.matrix(0), o.output())


def _rms_norm(o: Op) -> None:
    o.executor.rms_norm(o.per_output, o.input(), o.output(), o.vector(0), o.attrs["group"], o.attrs["eps"])


def _layer_norm(o: Op) -> None:
    shift = o.vector(1) if o.attrs["shift"] else NONE
    o.executor.layer_norm(o.per_output, o.input(), o.output(), o.vector(0), shift, o.attrs["group"], o.attrs["eps"])


def _add_rms_norm(o: Op) -> None:
    (a, b), (total, normed) = o.inputs(), o.outputs()
    o.executor.add_rms_norm(o.per_output, a, b, total, normed, o.vector(0), o.attrs["group"], o.attrs["eps"])


def _rope(o: Op) -> None:
    table = o.bound.rope(o.attrs["rope"], o.attrs["axis"])
    o.executor.rope(o.input(), o.output(), table, o.attrs["head_dim"])


def _act_mul(o: Op) -> None:
    o.executor.act_mul(o.per_output, o.input(0), o.input(1), o.output(), ACTIVATIONS[o.attrs["act"]])


def _moe_route(o: Op) -> None:
    sigmoid = o.attrs["scoring"] == "sigmoid"
    o.executor.moe_route(o.per_output, o.input(), o.output(), o.attrs["top_k"], o.attrs["normalise"], sigmoid)


def _combine(o: Op) -> None:
    o.executor.combine(o.per_output, o.input(0), o.input(1), o.output(), o.attrs["top_k"])


def _write_kv(o: Op) -> None:
    o.executor.write_kv(o.input(0), o.input(1), *o.state())


def _gate_up_act(o: Op) -> None:
    act = ACTIVATIONS[o.attrs["act"]]
    o.executor.gate_up_act(o.per_output, o.input(), o.matrix(0), o.matrix(1), o.output(), act)


def _group_experts(o: Op) -> None:
    o.executor.group_experts(o.per_output, o.input(), o.attrs["top_k"], o.attrs["num_experts"])


def _moe_linear(o: Op) -> None:
    x, routing = o.instr.inputs
    x_per_expert = x.rows.multiple != routing.rows.multiple
    o.executor.moe_linear(o.per_output, o.input(0), o.segments(), o.attrs["top_k"], x_per_expert)


def _attention(o: Op) -> None:
    a = o.attrs
    group, layer = o.state()
    o.executor.attention(
        q=o.input(),
        out=o.output(),
        group=group,
        layer=layer,
        num_heads=a["num_heads"],
        num_kv_heads=a["num_kv_heads"],
        head_dim=a["head_dim"],
        window=a["window"] or 0,
        scale=a["scale"],
        softcap=a["softcap"] or 0.0,
        causal=a["causal"],
    )


_EMIT: Mapping[str, Callable[[Op], None]] = {
    "embed": _embed,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "add_rms_norm": _add_rms_norm,
    "rope": _rope,
    "act_mul": _act_mul,
    "add": lambda o: o.executor.add(o.per_output, o.input(0), o.input(1), o.output()),
    "scale": lambda o: o.executor.scale(o.per_output, o.input(), o.output(), o.attrs["factor"]),
    "softcap": lambda o: o.executor.softcap(o.per_output, o.input(), o.output(), o.attrs["cap"]),
    "moe_route": _moe_route,
    "combine": _combine,
    "select_rows": lambda o: o.executor.select_rows(o.input(), o.output()),
    "split": lambda o: o.executor.split(o.per_output, o.input(), o.outputs()),
    "concat": lambda o: o.executor.concat(o.per_output, o.inputs(), o.output()),
    "write_kv": _write_kv,
    "quantise": lambda o: o.executor.quantise(o.per_output, o.input(), o.attrs["fine"]),
    "linear": lambda o: o.executor.linear(o.per_output, o.input(), o.segments(), o.attrs["fine"]),
    "gate_up_act": _gate_up_act,
    "group_experts": _group_experts,
    "moe_linear": _moe_linear,
    "attention": _attention,
}
