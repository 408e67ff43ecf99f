"""From a program to the phases that the native executor runs, and where every value lives.

A phase is what lies between two barriers: one matrix or attention op, or a run of row ops, each row of which is taken through
all of them by one thread. Three steps that the program leaves to the backend become instructions of their own here:

* ``quantise``: the activation in the form that integer kernels read, made once for all that read the same value; ``fine``
  for what a gated activation makes, see ``_gated``;
* ``write_kv``: the first half of ``attention``;
* ``group_experts``: the rows of each expert, listed once for all ``moe_linear`` of a routing.

Buffers are planned over phases, not instructions: within a phase threads are at different ops at the same time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tuili.program.passes.plan import BufferPlan, plan
from tuili.program.program import Instr, Program, Value

ROW_OPS = frozenset(
    {"embed", "rms_norm", "layer_norm", "add_rms_norm", "rope", "act_mul", "add", "scale", "softcap", "moe_route", "combine"}
    | {"select_rows", "split", "concat", "quantise", "write_kv"}
)
MATRIX_OPS = frozenset({"linear", "gate_up_act", "moe_linear"})
PHASE_OPS = MATRIX_OPS | {"attention", "group_experts"}

#: Gated activations of this width and wider keep one 8-bit term: a sum of so many rounding errors averages them out (measured on
#: widths from 1,536 to 8,960), while a second term would double the cost of a quarter of all multiplications.
FINE_WIDTH = 2048


@dataclass(frozen=True, slots=True)
class Phase:
    """``instrs``: one of PHASE_OPS, or row ops. ``per_output``: it works on the step's output rows, not on its tokens."""

    per_output: bool
    instrs: tuple[Instr, ...]

    @property
    def is_rows(self) -> bool:
        return self.instrs[0].op in ROW_OPS

    @property
    def cost(self) -> int:
        """Floats that one token (or output row) makes its row ops touch."""
        return sum(v.width * v.rows.multiple for instr in self.instrs for v in (*instr.inputs, *instr.outputs))


@dataclass(frozen=True, slots=True)
class Lowered:
    phases: tuple[Phase, ...]
    buffers: BufferPlan
    values: tuple[Value, ...]


def lower(program: Program, reads_acts: Callable[[str], bool]) -> Lowered:
    """``reads_acts``: whether the matrix of that name is multiplied with quantised activations."""
    ordered = sorted(program.instrs, key=_per_output)  # stable: everything a token needs, then everything an output needs
    phases = tuple(_phases(_expand(program, ordered, reads_acts)))
    values = tuple(value for instr in ordered for value in instr.outputs)
    return Lowered(phases, _plan_buffers(program, phases), values)


def _per_output(instr: Instr) -> bool:
    values = instr.outputs or instr.inputs
    return values[0].rows.symbol == "R"


def matrices_of(instr: Instr) -> tuple[str, ...]:
    """The names of an instruction's matrices, biases left out."""
    if instr.op != "linear" and instr.op != "moe_linear":
        return instr.weights
    return tuple(name for name, _ in segments_of(instr))


def segments_of(instr: Instr) -> list[tuple[str, str | None]]:
    """Matrix and bias of each segment of a linear or moe_linear."""
    biases = instr.attrs.get("biases", (False,) * len(instr.outputs))
    assert isinstance(biases, tuple)
    names = iter(instr.weights)
    return [(next(names), next(names) if has_bias else None) for has_bias in biases]


def _expand(program: Program, instrs: Sequence[Instr], reads_acts: Callable[[str], bool]) -> Iterator[Instr]:
    quantised: int | None = None
    grouped: int | None = None
    gated = _gated(instrs)
    for instr in instrs:
        fine = instr.op == "linear" and instr.inputs[0].id in gated
        if instr.op == "attention":
            q, k, v = instr.inputs
            yield replace(instr, op="write_kv", inputs=(k, v), outputs=())
            yield replace(instr, inputs=(q,))
            continue
        if instr.op == "moe_linear" and instr.inputs[1].id != grouped:
            routing = instr.inputs[1]
            grouped = routing.id
            attrs = {"top_k": instr.attrs["top_k"], "num_experts": program.weights[instr.weights[0]].shape[0]}
            yield replace(instr, op="group_experts", inputs=(routing,), outputs=(), weights=(), attrs=attrs)
        if instr.op in MATRIX_OPS and instr.inputs[0].id != quantised and any(map(reads_acts, matrices_of(instr))):
            quantised = instr.inputs[0].id
            yield replace(instr, op="quantise", inputs=(instr.inputs[0],), outputs=(), weights=(), attrs={"fine": fine})
        yield replace(instr, attrs={**instr.attrs, "fine": fine}) if instr.op == "linear" else instr


def _gated(instrs: Sequence[Instr]) -> frozenset[int]:
    """Values made by act(gate) * up, narrower than FINE_WIDTH. Their columns differ by orders of magnitude, so that eight bits
    lose more here than anywhere else; read with about fifteen, the logits of SmolLM2 come 16 % closer to float32.

    Only those that nothing but ``linear`` multiplies: all who read one quantised value have to read the same form of it.
    """
    gated = {value.id for instr in instrs if instr.op in ("act_mul", "gate_up_act") for value in instr.outputs}
    narrow = {value.id for instr in instrs for value in instr.outputs if value.id in gated and value.width < FINE_WIDTH}
    return frozenset(narrow - {instr.inputs[0].id for instr in instrs if instr.op in MATRIX_OPS and instr.op != "linear"})


def _phases(instrs: Iterator[Instr]) -> Iterator[Phase]:
    rows: list[Instr] = []
    for instr in instrs:
        if rows and (instr.op in PHASE_OPS or _per_output(instr) != _per_output(rows[0])):
            yield Phase(_per_output(rows[0]), tuple(rows))
            rows = []
        if instr.op in PHASE_OPS:
            yield Phase(_per_output(instr), (instr,))
        else:
            rows.append(instr)
    if rows:
        yield Phase(_per_output(rows[0]), tuple(rows))


def _plan_buffers(program: Program, phases: Sequence[Phase]) -> BufferPlan:
    """Liveness with each phase as one instruction."""
    as_instrs: list[Instr] = []
    for phase in phases:
        inputs = {value.id: value for instr in phase.instrs for value in instr.inputs}
        outputs = tuple(_stored(instr, value) for instr in phase.instrs for value in instr.outputs)
        as_instrs.append(Instr("phase", tuple(inputs.values()), outputs))
    return plan(replace(program, instrs=tuple(as_instrs)))


def _stored(instr: Instr, value: Value) -> Value:
    """A routing value is stored with its expert ids behind it."""
    return replace(value, width=2 * value.width) if instr.op == "moe_route" else value
