"""Tensor parallelism: the program of one rank out of several, after Megatron-LM (arXiv:1909.08053).

Linears marked ``column`` keep a share of their rows (outputs), linears marked ``row`` a share of their columns (inputs); heads
are divided, KV heads divided or, when there are fewer of them than ranks, repeated. Partial sums meet in ``all_reduce``, the
vocabulary's shares in ``all_gather``. Everything else is computed by every rank.

On the way, a value is "whole" (the same on every rank), "split" (each rank has its columns) or "partial" (to be summed).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, cast

from tuili.errors import ConfigError
from tuili.program.program import Instr, Program, StateDecl, Value, WeightDecl

Status = Literal["whole", "split", "partial"]


@dataclass(frozen=True, slots=True)
class Cut:
    """A rank's weight: elements [start, stop) of the whole weight ``source`` along ``axis``."""

    source: str
    axis: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Sharded:
    """``cuts``: where each weight of the rank's program comes from; weights that are not in it are taken whole."""

    program: Program
    cuts: Mapping[str, Cut]


def shard(program: Program, rank: int, world: int) -> Sharded:
    """The program of ``rank`` out of ``world``; raises ConfigError naming what does not divide."""
    if not 0 <= rank < world:
        raise ConfigError(f"rank {rank} is not one of {world} ranks")
    return _Sharder(program, rank, world).run()


@dataclass
class _Sharder:
    program: Program
    rank: int
    world: int
    instrs: list[Instr] = field(default_factory=list[Instr])
    cuts: dict[str, Cut] = field(default_factory=dict[str, Cut])
    weights: dict[str, WeightDecl] = field(default_factory=dict[str, WeightDecl])
    states: dict[str, StateDecl] = field(default_factory=dict[str, StateDecl])
    values: dict[int, Value] = field(default_factory=dict[int, Value])
    status: dict[int, Status] = field(default_factory=dict[int, Status])
    next_id: int = 0

    def run(self) -> Sharded:
        units = _head_counts(self.program)
        self.next_id = 1 + max(value.id for instr in self.program.instrs for value in instr.outputs)
        for instr in self.program.instrs:
            match instr.op:
                case "linear" | "moe_linear" | "gate_up_act":
                    self._matrix(instr, units)
                case "attention":
                    self._attention(instr)
                case _:
                    self._plain(instr)
        output = self.program.output
        if self.status[output.id] == "split":
            self._collect("all_gather", output)
        program = replace(
            self.program,
            instrs=tuple(self.instrs),
            weights=self.weights,
            states=tuple(self.states[state.name] for state in self.program.states),
            output=self.values[output.id],
            rank=self.rank,
            world=self.world,
        )
        return Sharded(program, self.cuts)

    # Instructions

    def _plain(self, instr: Instr) -> None:
        """All ops that keep their inputs' status: by rows, by columns, or by heads."""
        statuses: set[Status] = {self.status[value.id] for value in instr.inputs} or {"whole"}
        if instr.op == "combine":  # the router's weights are whole
            statuses = {self.status[instr.inputs[0].id]}
        status = self._only(instr, statuses)
        if status == "split" and instr.op in ("split", "concat", "moe_route", "add_rms_norm"):
            raise ConfigError(f"{instr.origin}: {instr.op} of a value that tensor parallelism divides: not possible")
        if status == "split" and "group" in instr.attrs:
            group, width = cast("int", instr.attrs["group"]), self.values[instr.inputs[0].id].width
            if width % group:
                raise ConfigError(f"{instr.origin}: {self.world} ranks divide a norm over {group} columns: not possible")
        # Every op that may meet a split value gives as many columns as its first input has.
        outputs = instr.outputs
        if status == "split":
            outputs = tuple(replace(v, width=self.values[instr.inputs[0].id].width) for v in outputs)
        for name in instr.weights:
            self.weights[name] = self.program.weights[name]
        self._emit(instr, outputs, status, weights=instr.weights)
        if status == "partial":
            for value in instr.outputs:
                self._collect("all_reduce", value)

    def _matrix(self, instr: Instr, units: Mapping[int, int]) -> None:
        split = instr.attrs["split"]
        biases = cast("tuple[bool, ...]", instr.attrs.get("biases", (False,) * len(instr.weights)))
        wanted: Status = "split" if split == "row" else "whole"
        if self._only(instr, {self.status[instr.inputs[0].id]}) != wanted:
            raise ConfigError(f"{instr.origin}: a linear with split {split!r} needs an input that is {wanted}")
        names: list[str] = []
        outputs: list[Value] = []
        kept: list[bool] = []
        given = iter(instr.weights)
        for index, bias in enumerate(biases):
            value = instr.outputs[min(index, len(instr.outputs) - 1)]
            start, stop = self._rows_of(instr, value, units) if split == "column" else (0, value.width)
            names.append(self._cut_matrix(next(given), split, start, stop))
            outputs.append(replace(value, width=stop - start))
            if bias:
                name = next(given)
                # Partial sums are added up, so one rank alone brings the bias.
                kept.append(split != "row" or self.rank == 0)
                names += [self._cut(name, -1, start, stop)] if kept[-1] else []
            else:
                kept.append(False)
        attrs = {**instr.attrs, "biases": tuple(kept)} if "biases" in instr.attrs else instr.attrs
        status: Status = "whole" if split is None else "split" if split == "column" else "partial"
        unique = tuple(outputs[: len(instr.outputs)])
        self._emit(instr, unique, status, weights=tuple(names), attrs=attrs)
        if status == "partial" and instr.op != "moe_linear":  # experts' outputs are summed after ``combine``
            for value in instr.outputs:
                self._collect("all_reduce", value)

    def _attention(self, instr: Instr) -> None:
        head_dim = cast("int", instr.attrs["head_dim"])
        q, k, _ = (self.values[value.id] for value in instr.inputs)
        if {self.status[value.id] for value in instr.inputs} != {"split"}:
            raise ConfigError(f"{instr.origin}: attention needs q, k and v from linears with split 'column'")
        attrs = {**instr.attrs, "num_heads": q.width // head_dim, "num_kv_heads": k.width // head_dim}
        assert instr.state is not None
        state = next(state for state in self.program.states if state.name == instr.state)
        self.states[state.name] = replace(state, num_kv_heads=k.width // head_dim)
        self._emit(instr, (replace(instr.outputs[0], width=q.width),), "split", attrs=attrs)

    # Parts

    def _only(self, instr: Instr, statuses: Collection[Status]) -> Status:
        if len(statuses) != 1:
            raise ConfigError(f"{instr.origin}: {instr.op} of values that tensor parallelism divides and others: not possible")
        return next(iter(statuses))

    def _rows_of(self, instr: Instr, value: Value, heads: Mapping[int, int]) -> tuple[int, int]:
        """Which output rows this rank computes: whole heads, where the value is made of heads."""
        count = heads.get(value.id, value.width)
        what = "heads" if value.id in heads else "columns"
        if count % self.world == 0:
            first, share = self.rank * count // self.world, count // self.world
        elif value.id in heads and self.world % count == 0:
            first, share = self.rank * count // self.world, 1
        else:
            raise ConfigError(f"{instr.origin}: {count} {what} cannot be divided among {self.world} ranks")
        unit = value.width // count
        return first * unit, (first + share) * unit

    def _cut_matrix(self, name: str, split: object, start: int, stop: int) -> str:
        """The rank's part of a matrix: rows [start, stop), or for a row split its share of the columns."""
        if split == "row":
            columns = self.program.weights[name].shape[-1]
            if columns % self.world:
                raise ConfigError(f"weight {name}: {columns} columns cannot be divided among {self.world} ranks")
            share = columns // self.world
            return self._cut(name, -1, self.rank * share, (self.rank + 1) * share)
        return self._cut(name, -2, start, stop)

    def _cut(self, name: str, axis: int, start: int, stop: int) -> str:
        """Declare a part of a weight. A weight that is used whole elsewhere (tied embeddings) keeps its name there."""
        shape = self.program.weights[name].shape
        axis %= len(shape)
        whole = (start, stop) == (0, shape[axis])
        own = name if whole or name not in self.weights else f"{name}[{start}:{stop}]"
        self.weights[own] = WeightDecl(own, (*shape[:axis], stop - start, *shape[axis + 1 :]))
        if not whole:
            self.cuts[own] = Cut(name, axis, start, stop)
        return own

    def _emit(
        self,
        instr: Instr,
        outputs: tuple[Value, ...],
        status: Status,
        *,
        weights: tuple[str, ...] = (),
        attrs: Mapping[str, object] | None = None,
    ) -> None:
        inputs = tuple(self.values[value.id] for value in instr.inputs)
        changed = replace(instr, inputs=inputs, outputs=outputs, weights=weights, attrs=instr.attrs if attrs is None else attrs)
        self.instrs.append(changed)
        for value in outputs:
            self.values[value.id] = value
            self.status[value.id] = status

    def _collect(self, op: str, value: Value) -> None:
        """Let all ranks meet over ``value``; later readers get the result."""
        result = Value(self.next_id, value.rows, value.width)
        self.next_id += 1
        self.instrs.append(Instr(op, (self.values[value.id],), (result,), origin=f"shard of {value.id}"))
        self.values[value.id] = result
        self.status[value.id] = "whole"


def _head_counts(program: Program) -> dict[int, int]:
    """Of how many heads each value on the way to an attention is made."""
    counts: dict[int, int] = {}
    for instr in reversed(program.instrs):
        if instr.op == "attention":
            heads, kv_heads = (cast("int", instr.attrs[name]) for name in ("num_heads", "num_kv_heads"))
            counts |= {value.id: n for value, n in zip(instr.inputs, (heads, kv_heads, kv_heads), strict=True)}
        elif instr.op in ("rope", "rms_norm", "scale") and instr.outputs[0].id in counts:
            counts[instr.inputs[0].id] = counts[instr.outputs[0].id]
    return counts
