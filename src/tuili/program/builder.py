"""What an architecture file talks to: one method per op, each returning the value (or values) it makes.

A builder records where every instruction came from, so that a mistake found later is reported with the model file's line.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from tuili.program.program import Instr, Program, RopeSpec, Rows, StateDecl, Value, WeightDecl

Split = Literal["column", "row"] | None

#: Files whose frames are passed over on the way to the architecture file: this one, and the shared blocks.
_HELPERS = ("builder.py", "blocks.py")


def _origin() -> str:
    """ "llama.py:30", or "llama.py:30 via blocks.py:70" when a shared block made the instruction."""
    via = ""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None:
        name = os.path.basename(frame.f_code.co_filename)
        if name not in _HELPERS:
            return f"{name}:{frame.f_lineno}{via}"
        if name != "builder.py" and not via:
            via = f" via {name}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown"


class Builder:
    """Collects instructions, weights and states of one program. ``rows`` of every value follow from its inputs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._instrs: list[Instr] = []
        self._weights: dict[str, WeightDecl] = {}
        self._states: list[StateDecl] = []
        self._num_values = 0

    # What a program reads

    def weight(self, name: str, *shape: int) -> WeightDecl:
        """Declare a weight by its canonical name; keep the result to use it twice (tied embeddings)."""
        if name in self._weights:
            raise ValueError(f"{_origin()}: weight {name} is declared twice; keep what the first declaration returned")
        self._weights[name] = WeightDecl(name, shape)
        return self._weights[name]

    # Ops, in the order of the op table

    def embed(self, table: WeightDecl) -> Value:
        """[vocab, width] -> [T, width]"""
        return self._emit("embed", (), [(Rows(), table.shape[1])], weights=(table,))[0]

    def linear(self, x: Value, weight: WeightDecl, bias: WeightDecl | None = None, *, split: Split = None) -> Value:
        """[rows, K] -> [rows, N] with a weight [N, K]. ``split``: how tensor parallelism may cut it."""
        weights = (weight,) if bias is None else (weight, bias)
        attrs = {"biases": (bias is not None,), "split": split}
        return self._emit("linear", (x,), [(x.rows, weight.shape[0])], weights=weights, attrs=attrs)[0]

    def rms_norm(self, x: Value, weight: WeightDecl, eps: float) -> Value:
        """Normalise each run of len(weight) columns."""
        attrs = {"eps": eps, "group": weight.shape[0]}
        return self._emit("rms_norm", (x,), [(x.rows, x.width)], weights=(weight,), attrs=attrs)[0]

    def layer_norm(self, x: Value, scale: WeightDecl, shift: WeightDecl | None, eps: float) -> Value:
        weights = (scale,) if shift is None else (scale, shift)
        attrs: dict[str, object] = {"eps": eps, "group": scale.shape[0], "shift": shift is not None}
        return self._emit("layer_norm", (x,), [(x.rows, x.width)], weights=weights, attrs=attrs)[0]

    def rope(self, x: Value, rope: RopeSpec, head_dim: int, *, axis: int = 0) -> Value:
        return self._emit("rope", (x,), [(x.rows, x.width)], attrs={"rope": rope, "head_dim": head_dim, "axis": axis})[0]

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        *,
        state: str,
        head_dim: int,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        causal: bool = True,
    ) -> Value:
        """Declares the state too. ``window``: how many last positions a query sees, itself included; None for all."""
        num_heads, num_kv_heads = q.width // head_dim, k.width // head_dim
        kind = "full" if window is None else "window"
        self._states.append(StateDecl(state, kind, num_kv_heads, head_dim, window))
        attrs: dict[str, object] = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim, "scale": scale}
        attrs |= {"softcap": softcap, "window": window, "causal": causal}
        return self._emit("attention", (q, k, v), [(q.rows, q.width)], state=state, attrs=attrs)[0]

    def act_mul(self, gate: Value, up: Value, act: str) -> Value:
        return self._emit("act_mul", (gate, up), [(gate.rows, gate.width)], attrs={"act": act})[0]

    def add(self, a: Value, b: Value) -> Value:
        return self._emit("add", (a, b), [(a.rows, a.width)])[0]

    def scale(self, x: Value, factor: float) -> Value:
        return self._emit("scale", (x,), [(x.rows, x.width)], attrs={"factor": factor})[0]

    def softcap(self, x: Value, cap: float) -> Value:
        return self._emit("softcap", (x,), [(x.rows, x.width)], attrs={"cap": cap})[0]

    def moe_route(self, logits: Value, top_k: int, *, normalise: bool, scoring: str = "softmax") -> Value:
        """[rows, E] -> the weights [rows, top_k]; the chosen expert ids travel with the value."""
        attrs = {"top_k": top_k, "normalise": normalise, "scoring": scoring}
        return self._emit("moe_route", (logits,), [(logits.rows, top_k)], attrs=attrs)[0]

    def moe_linear(self, x: Value, routing: Value, weight: WeightDecl, *, split: Split = None) -> Value:
        """x [rows, K] or [rows * top_k, K] -> [rows * top_k, N] with a weight [E, N, K]."""
        top_k = routing.width
        rows = Rows(routing.rows.symbol, routing.rows.multiple * top_k)
        attrs: dict[str, object] = {"top_k": top_k, "biases": (False,), "split": split}
        return self._emit("moe_linear", (x, routing), [(rows, weight.shape[1])], weights=(weight,), attrs=attrs)[0]

    def combine(self, y: Value, routing: Value) -> Value:
        """[rows * top_k, N] -> [rows, N]"""
        return self._emit("combine", (y, routing), [(routing.rows, y.width)], attrs={"top_k": routing.width})[0]

    def select_rows(self, x: Value) -> Value:
        """[T, width] -> [R, width]"""
        return self._emit("select_rows", (x,), [(Rows("R"), x.width)])[0]

    def split(self, x: Value, widths: Sequence[int]) -> tuple[Value, ...]:
        return self._emit("split", (x,), [(x.rows, width) for width in widths], attrs={"widths": tuple(widths)})

    def concat(self, *values: Value) -> Value:
        return self._emit("concat", values, [(values[0].rows, sum(value.width for value in values))])[0]

    def finish(self, output: Value, kind: Literal["logits", "hidden"] = "logits") -> Program:
        return Program(self.name, tuple(self._instrs), dict(self._weights), tuple(self._states), output, kind)

    def _emit(
        self,
        op: str,
        inputs: tuple[Value, ...],
        outputs: Sequence[tuple[Rows, int]],
        *,
        weights: tuple[WeightDecl, ...] = (),
        state: str | None = None,
        attrs: Mapping[str, object] = MappingProxyType({}),
    ) -> tuple[Value, ...]:
        values = tuple(Value(self._num_values + i, rows, width) for i, (rows, width) in enumerate(outputs))
        self._num_values += len(values)
        names = tuple(weight.name for weight in weights)
        self._instrs.append(Instr(op, inputs, values, names, dict(attrs), state, _origin()))
        return values
