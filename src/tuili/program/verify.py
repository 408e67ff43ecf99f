"""Check a program before anything runs it. Every message names the instruction and the model file's line."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, cast

from tuili.program.ops import OPS
from tuili.program.program import Instr, Program, RopeSpec, Rows, StateDecl, Value, WeightDecl

ACTS = ("silu", "gelu_tanh", "gelu")
SCORINGS = ("softmax", "sigmoid")
SPLITS = (None, "column", "row")


class InvalidProgram(Exception):
    """A model file or a pass made a program that no backend may run: our mistake, not the user's."""


class Checker:
    """One instruction and what it may refer to; the rules below read it."""

    def __init__(self, index: int, instr: Instr, weights: Mapping[str, WeightDecl]) -> None:
        self.index = index
        self.instr = instr
        self._weights = weights

    @property
    def attrs(self) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", self.instr.attrs)

    @property
    def inputs(self) -> tuple[Value, ...]:
        return self.instr.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        return self.instr.outputs

    def fail(self, what: str) -> None:
        raise InvalidProgram(f"{self.instr.origin}: instruction {self.index} ({self.instr.op}): {what}")

    def require(self, ok: bool, what: str) -> None:
        if not ok:
            self.fail(what)

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._weights:
            self.fail(f"weight {name} is not declared")
        return self._weights[name].shape

    def num_weights(self, count: int) -> None:
        self.require(len(self.instr.weights) == count, f"has {len(self.instr.weights)} weights, needs {count}")

    def weight_is(self, name: str, *expected: int | None) -> None:
        """``None`` leaves a dimension free."""
        shape = self.shape(name)
        fits = len(shape) == len(expected) and all(want in (None, have) for have, want in zip(shape, expected, strict=True))
        wanted = ["any" if want is None else want for want in expected]
        self.require(fits, f"weight {name} is {list(shape)}, needs {wanted}")

    def output_is(self, index: int, rows: Rows, width: int) -> None:
        have = self.outputs[index]
        ok = have.rows == rows and have.width == width
        self.require(ok, f"output {index} is [{have.rows}, {have.width}], needs [{rows}, {width}]")

    def num_outputs(self, count: int) -> None:
        self.require(len(self.outputs) == count, f"has {len(self.outputs)} outputs, needs {count}")

    def same_inputs(self) -> None:
        a, b = self.inputs
        same = a.rows == b.rows and a.width == b.width
        self.require(same, f"inputs differ: [{a.rows}, {a.width}] and [{b.rows}, {b.width}]")

    def one_like_input(self) -> None:
        self.num_outputs(1)
        self.output_is(0, self.inputs[0].rows, self.inputs[0].width)


def _embed(c: Checker) -> None:
    c.num_weights(1)
    c.num_outputs(1)
    c.weight_is(c.instr.weights[0], None, c.outputs[0].width)
    c.output_is(0, Rows(), c.outputs[0].width)


def _segments(c: Checker, rows: Rows, *, experts: bool) -> None:
    biases = cast("tuple[bool, ...]", c.attrs["biases"])
    c.num_outputs(len(biases))
    c.num_weights(len(biases) + sum(biases))
    c.require(c.attrs["split"] in SPLITS, f"split is {c.attrs['split']!r}; possible: {SPLITS}")
    names = iter(c.instr.weights)
    for index, has_bias in enumerate(biases):
        width = c.outputs[index].width
        leading = (None,) if experts else ()
        c.weight_is(next(names), *leading, width, c.inputs[0].width)
        c.output_is(index, rows, width)
        if has_bias:
            c.weight_is(next(names), *leading, width)


def _linear(c: Checker) -> None:
    _segments(c, c.inputs[0].rows, experts=False)


def _norm(c: Checker) -> None:
    group = cast("int", c.attrs["group"])
    c.require(c.inputs[0].width % group == 0, f"width {c.inputs[0].width} is not a multiple of group {group}")
    c.require(c.attrs["eps"] > 0, f"eps is {c.attrs['eps']}; it has to be positive")
    for name in c.instr.weights:
        c.weight_is(name, group)


def _rms_norm(c: Checker) -> None:
    c.num_weights(1)
    _norm(c)
    c.one_like_input()


def _layer_norm(c: Checker) -> None:
    c.num_weights(2 if c.attrs["shift"] else 1)
    _norm(c)
    c.one_like_input()


def _add_rms_norm(c: Checker) -> None:
    c.num_weights(1)
    c.same_inputs()
    _norm(c)
    c.num_outputs(2)
    for index in range(2):
        c.output_is(index, c.inputs[0].rows, c.inputs[0].width)


def _rope(c: Checker) -> None:
    rope, head_dim = cast("RopeSpec", c.attrs["rope"]), cast("int", c.attrs["head_dim"])
    c.one_like_input()
    c.require(c.inputs[0].rows == Rows(), "works on token rows, T")
    c.require(c.inputs[0].width % head_dim == 0, f"width {c.inputs[0].width} is not a multiple of head_dim {head_dim}")
    fits = rope.dim % 2 == 0 and 0 < rope.dim <= head_dim and len(rope.inverse_frequencies) == rope.dim // 2
    c.require(fits, f"rotates {rope.dim} of {head_dim} dimensions with {len(rope.inverse_frequencies)} frequencies")


def _attention(c: Checker) -> None:
    q, k, v = c.inputs
    heads, kv_heads, dim = (cast("int", c.attrs[name]) for name in ("num_heads", "num_kv_heads", "head_dim"))
    c.require(kv_heads > 0 and heads % kv_heads == 0, f"{heads} heads do not share {kv_heads} KV heads evenly")
    c.require(q.width == heads * dim, f"q is {q.width} wide, needs {heads} heads × {dim}")
    c.require(k.width == v.width == kv_heads * dim, f"k and v are {k.width} and {v.width} wide, need {kv_heads} heads × {dim}")
    c.require(q.rows == k.rows == v.rows == Rows(), "works on token rows, T")
    window = cast("int | None", c.attrs["window"])
    c.require(window is None or window > 0, f"window is {window}; it has to be positive, or None")
    c.one_like_input()


def _act_mul(c: Checker) -> None:
    c.same_inputs()
    c.one_like_input()
    c.require(c.attrs["act"] in ACTS, f"act is {c.attrs['act']!r}; possible: {ACTS}")


def _gate_up_act(c: Checker) -> None:
    c.num_weights(2)
    c.num_outputs(1)
    for name in c.instr.weights:
        c.weight_is(name, c.outputs[0].width, c.inputs[0].width)
    c.output_is(0, c.inputs[0].rows, c.outputs[0].width)
    c.require(c.attrs["act"] in ACTS, f"act is {c.attrs['act']!r}; possible: {ACTS}")


def _add(c: Checker) -> None:
    c.same_inputs()
    c.one_like_input()


def _moe_route(c: Checker) -> None:
    top_k = cast("int", c.attrs["top_k"])
    c.require(0 < top_k <= c.inputs[0].width, f"picks {top_k} of {c.inputs[0].width} experts")
    c.require(c.attrs["scoring"] in SCORINGS, f"scoring is {c.attrs['scoring']!r}; possible: {SCORINGS}")
    c.num_outputs(1)
    c.output_is(0, c.inputs[0].rows, top_k)


def _moe_linear(c: Checker) -> None:
    x, routing = c.inputs
    top_k = cast("int", c.attrs["top_k"])
    each = Rows(routing.rows.symbol, routing.rows.multiple * top_k)
    c.require(routing.width == top_k, f"routing is {routing.width} wide, needs {top_k}")
    c.require(x.rows in (routing.rows, each), f"x has {x.rows} rows, needs {routing.rows} or {each}")
    c.require(not any(cast("tuple[bool, ...]", c.attrs["biases"])), "no backend adds biases of experts")
    _segments(c, each, experts=True)


def _combine(c: Checker) -> None:
    y, routing = c.inputs
    each = Rows(routing.rows.symbol, routing.rows.multiple * routing.width)
    c.require(y.rows == each and routing.width == c.attrs["top_k"], f"y has {y.rows} rows, needs {each}")
    c.num_outputs(1)
    c.output_is(0, routing.rows, y.width)


def _select_rows(c: Checker) -> None:
    c.require(c.inputs[0].rows == Rows(), "selects from token rows, T")
    c.num_outputs(1)
    c.output_is(0, Rows("R"), c.inputs[0].width)


def _split(c: Checker) -> None:
    widths = cast("tuple[int, ...]", c.attrs["widths"])
    c.require(sum(widths) == c.inputs[0].width, f"widths {widths} do not add up to {c.inputs[0].width}")
    c.num_outputs(len(widths))
    for index, width in enumerate(widths):
        c.output_is(index, c.inputs[0].rows, width)


def _concat(c: Checker) -> None:
    c.require(len({value.rows for value in c.inputs}) == 1, "inputs have different rows")
    c.num_outputs(1)
    c.output_is(0, c.inputs[0].rows, sum(value.width for value in c.inputs))


def _all_gather(c: Checker) -> None:
    c.num_outputs(1)
    c.require(c.outputs[0].rows == c.inputs[0].rows, "gathers columns, not rows")


_RULES: dict[str, Callable[[Checker], None]] = {
    "embed": _embed,
    "linear": _linear,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "rope": _rope,
    "attention": _attention,
    "act_mul": _act_mul,
    "add": _add,
    "scale": Checker.one_like_input,
    "softcap": Checker.one_like_input,
    "moe_route": _moe_route,
    "moe_linear": _moe_linear,
    "combine": _combine,
    "select_rows": _select_rows,
    "split": _split,
    "concat": _concat,
    "all_reduce": Checker.one_like_input,
    "all_gather": _all_gather,
    "add_rms_norm": _add_rms_norm,
    "gate_up_act": _gate_up_act,
}


def _check_instr(c: Checker, defined: Mapping[int, Value]) -> None:
    spec = OPS.get(c.instr.op)
    if spec is None:
        c.fail(f"there is no such op; known: {', '.join(OPS)}")
    assert spec is not None
    rule = _RULES.get(c.instr.op)
    if rule is None:
        c.fail("the op is reserved and has no rules yet")
    assert rule is not None
    count = len(c.inputs)
    c.require(spec.inputs in (None, count) and (spec.inputs is not None or count > 0), f"has {count} inputs, needs {spec.inputs}")
    missing = sorted(spec.attrs - set(c.instr.attrs))
    c.require(not missing, f"lacks {', '.join(missing)}")
    for value in c.inputs:
        c.require(defined.get(value.id) == value, f"reads value {value.id} before anything wrote it")
    for value in c.outputs:
        c.require(value.id not in defined, f"writes value {value.id} again")
        c.require(value.width > 0, f"value {value.id} is {value.width} wide")
    rule(c)


def _check_states(program: Program) -> None:
    used = Counter(instr.state for instr in program.instrs if instr.state is not None)
    declared = {state.name: state for state in program.states}
    for index, instr in enumerate(program.instrs):
        if instr.op != "attention":
            continue
        c = Checker(index, instr, program.weights)
        state = declared.get(instr.state or "")
        if state is None:
            c.fail(f"state {instr.state!r} is not declared")
        assert state is not None
        c.require(used[state.name] == 1, f"state {state.name} is used {used[state.name]} times")
        want = StateDecl(state.name, state.kind, c.attrs["num_kv_heads"], c.attrs["head_dim"], c.attrs["window"])
        c.require(state == want and (state.kind == "window") == (state.window is not None), f"state {state} does not fit")
    unused = sorted(set(declared) - set(used))
    if unused or len(declared) != len(program.states):
        raise InvalidProgram(f"program {program.name}: states never used, or declared twice: {unused}")


def verify(program: Program) -> None:
    """Raise InvalidProgram at the first broken rule: ops and attributes known, every value written once and before it is read,
    rows and widths fitting, every declared weight and state used."""
    defined: dict[int, Value] = {}
    for index, instr in enumerate(program.instrs):
        _check_instr(Checker(index, instr, program.weights), defined)
        defined.update({value.id: value for value in instr.outputs})
    used = {name for instr in program.instrs for name in instr.weights}
    unused = sorted(set(program.weights) - used)
    if unused:
        raise InvalidProgram(f"program {program.name}: weights declared and never used: {', '.join(unused)}")
    _check_states(program)
    if defined.get(program.output.id) != program.output:
        raise InvalidProgram(f"program {program.name}: nothing writes the output, value {program.output.id}")
