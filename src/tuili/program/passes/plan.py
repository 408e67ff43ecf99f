"""Where every value lives: a buffer plan from liveness, so that an arena can be sized and reused.

There is one arena for values with T rows and one for values with R rows. A value occupies ``columns`` columns from ``offset``
on; with T tokens in a step (or the capacity for them) it starts at float ``offset * T`` of its arena and is a contiguous
[rows, width] float32 matrix. Offsets and columns are multiples of 16, so every buffer starts on a 64-byte line.

The value of ``moe_route`` takes two buffers' worth in one: after its weights [rows, top_k] come the expert ids
[rows, top_k], 32 bits each, in the backend's own form.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tuili.program.program import Instr, Program, Value

ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in the arena of ``symbol`` ("T" or "R"); ``offset`` and ``columns`` in floats a row of that symbol."""

    symbol: str
    offset: int
    columns: int


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """``slots`` by value id; ``columns`` of the whole arena by row symbol."""

    slots: Mapping[int, Slot]
    columns: Mapping[str, int]

    def arena_bytes(self, num_tokens: int, num_output_rows: int) -> int:
        return 4 * (self.columns["T"] * num_tokens + self.columns["R"] * num_output_rows)


class _Arena:
    """Free column ranges, first fit from the left; grows at its end."""

    def __init__(self) -> None:
        self.size = 0
        self._free: list[tuple[int, int]] = []  # (offset, columns), by offset, never touching

    def take(self, columns: int) -> int:
        for index, (offset, free) in enumerate(self._free):
            if free >= columns:
                self._free[index : index + 1] = [(offset + columns, free - columns)] if free > columns else []
                return offset
        offset = self.size
        if self._free and sum(self._free[-1]) == self.size:
            offset = self._free.pop()[0]
        self.size = offset + columns
        return offset

    def give(self, offset: int, columns: int) -> None:
        ranges = sorted([*self._free, (offset, columns)])
        self._free = []
        for start, length in ranges:
            if self._free and sum(self._free[-1]) == start:
                self._free[-1] = (self._free[-1][0], self._free[-1][1] + length)
            else:
                self._free.append((start, length))


def _columns(instr: Instr, value: Value) -> int:
    width = 2 * value.width if instr.op == "moe_route" else value.width
    return -(-width * value.rows.multiple // ALIGNMENT) * ALIGNMENT


def plan(program: Program) -> BufferPlan:
    """Buffers are reused once their last reader has run; an instruction's outputs never share with its inputs."""
    last_use = {value.id: index for index, instr in enumerate(program.instrs) for value in (*instr.inputs, *instr.outputs)}
    last_use[program.output.id] = len(program.instrs)
    arenas = {"T": _Arena(), "R": _Arena()}
    slots: dict[int, Slot] = {}
    for index, instr in enumerate(program.instrs):
        for value in instr.outputs:
            columns = _columns(instr, value)
            symbol = value.rows.symbol
            slots[value.id] = Slot(symbol, arenas[symbol].take(columns), columns)
        for value in {v.id: v for v in (*instr.inputs, *instr.outputs)}.values():
            if last_use[value.id] == index:
                slot = slots[value.id]
                arenas[slot.symbol].give(slot.offset, slot.columns)
    return BufferPlan(slots, {symbol: arena.size for symbol, arena in arenas.items()})
