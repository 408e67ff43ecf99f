"""A model as data: values, instructions, state and outputs. Immutable; passes return new programs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

#: Names the exact order of floating-point operations. Part of every cache's fingerprint; raise it when results change.
NUMERICS_VERSION = 2

#: Tokens in one KV block.
BLOCK_SIZE = 16

StateKind = Literal["full", "window"]


@dataclass(frozen=True, slots=True)
class Rows:
    """A symbolic row count: ``multiple`` × T (tokens in this step) or R (rows that need an output)."""

    symbol: Literal["T", "R"] = "T"
    multiple: int = 1

    def __str__(self) -> str:
        return self.symbol if self.multiple == 1 else f"{self.multiple}{self.symbol}"


@dataclass(frozen=True, slots=True)
class Value:
    """A float32 matrix [rows, width], assigned once. ``id`` is its position in the program's value numbering."""

    id: int
    rows: Rows
    width: int


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding. ``dim``: rotated dimensions of a head (the first ones). ``inverse_frequencies`` [dim / 2] already holds
    base, scaling and per-frequency factors; ``magnitude`` multiplies cos and sin (YaRN, longrope).

    angle[i] = position * inverse_frequencies[i], computed in float64; dimension i is paired with i + dim / 2.
    """

    dim: int
    inverse_frequencies: tuple[float, ...]
    magnitude: float = 1.0


@dataclass(frozen=True, slots=True)
class WeightDecl:
    """A weight the program reads: canonical (Hugging Face) name and shape. Its format comes with the data."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StateDecl:
    """The KV state of one attention layer. ``window``: how many last positions a query sees, itself included (kind window)."""

    name: str
    kind: StateKind
    num_kv_heads: int
    head_dim: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class StateGroup:
    """Layers that share one block table: same kind, window and shape. ``states`` are the names, in program order."""

    kind: StateKind
    window: int | None
    num_kv_heads: int
    head_dim: int
    states: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Instr:
    """One instruction. ``origin``: "file.py:line" of the model file that emitted it. ``weights``: canonical names."""

    op: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    weights: tuple[str, ...] = ()
    attrs: Mapping[str, object] = field(default_factory=dict[str, object])
    state: str | None = None
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """``output_kind``: the output rows are logits [R, vocab] or hidden [R, width]. ``rank`` of ``world`` after the shard pass."""

    name: str
    instrs: tuple[Instr, ...]
    weights: Mapping[str, WeightDecl]
    states: tuple[StateDecl, ...]
    output: Value
    output_kind: Literal["logits", "hidden"] = "logits"
    rank: int = 0
    world: int = 1

    def state_groups(self) -> tuple[StateGroup, ...]:
        """States grouped by what lets them share a block table, in order of first appearance."""
        groups: dict[tuple[StateKind, int | None, int, int], list[str]] = {}
        for state in self.states:
            groups.setdefault((state.kind, state.window, state.num_kv_heads, state.head_dim), []).append(state.name)
        return tuple(StateGroup(*key, states=tuple(names)) for key, names in groups.items())
