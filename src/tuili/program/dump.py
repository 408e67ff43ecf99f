"""A program as text, short enough to read: layers of equal structure are printed once, what varies among them is counted."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuili.program.program import BLOCK_SIZE, Instr, Program, RopeSpec, Value

_LAYER = re.compile(r"\.layers\.(\d+)\.")
#: Attributes that the listing leaves out: implied by the shapes, or by the op.
_IMPLIED = {
    "head_dim",
    "biases",
    "split",
    "eps",
    "group",
    "axis",
    "causal",
    "shift",
    "widths",
    "num_heads",
    "num_kv_heads",
    "top_k",
}


@dataclass(frozen=True, slots=True)
class _Layer:
    """Consecutive instructions of one layer; ``number`` is None before the first and after the last."""

    number: int | None
    instrs: tuple[Instr, ...]


def dump(program: Program, formats: Mapping[str, str] | None = None, sizes: Mapping[str, int] | None = None) -> str:
    """The listing. ``formats``: weight name -> format; ``sizes``: weight name -> bytes, both as far as known."""
    lines = [*_header(program, sizes), ""]
    for run in _runs(_layers(program)):
        numbers = [layer.number for layer in run if layer.number is not None]
        if numbers:
            count = "" if len(run) == 1 else f"s {numbers[0]}-{numbers[-1]} ({len(run)}x)"
            lines.append(f"layer{count or f' {numbers[0]}'}")
        for same in zip(*(layer.instrs for layer in run), strict=True):
            lines.append("  " + _line(same, formats or {}, sizes or {}))
    return "\n".join(lines)


def _header(program: Program, sizes: Mapping[str, int] | None) -> list[str]:
    parameters = sum(math.prod(decl.shape) for decl in program.weights.values())
    stored = "" if sizes is None else f", {_bytes(sum(sizes[name] for name in program.weights))} stored"
    rank = "" if program.world == 1 else f", rank {program.rank} of {program.world}"
    lines = [f"program {program.name}: {len(program.instrs)} instructions, {parameters / 1e6:.1f}M parameters{stored}{rank}"]
    for index, group in enumerate(program.state_groups()):
        sees = "every position" if group.window is None else f"the last {group.window} positions"
        block = 2 * 2 * BLOCK_SIZE * group.num_kv_heads * group.head_dim * len(group.states)
        heads = f"{group.num_kv_heads} heads × {group.head_dim}"
        lines.append(f"KV group {index}: {len(group.states)} layers, {heads}, {sees}; {_bytes(block)} a block in f16")
    lines.append("T: tokens of the step; R: rows that need an output")
    return lines


def _layers(program: Program) -> list[_Layer]:
    """Cut where the layer number changes; an instruction that names none belongs to the one before it."""
    layers: list[_Layer] = []
    current: list[Instr] = []
    number: int | None = None
    for instr in program.instrs:
        found = _LAYER.search(" ".join((*instr.weights, instr.state or "")))
        here = int(found.group(1)) if found else (None if instr.weights else number)
        if here != number and current:
            layers.append(_Layer(number, tuple(current)))
            current = []
        number = here
        current.append(instr)
    layers.append(_Layer(number, tuple(current)))
    return layers


def _runs(layers: Sequence[_Layer]) -> list[list[_Layer]]:
    runs: list[list[_Layer]] = []
    for layer in layers:
        if runs and layer.number is not None and _structure(runs[-1][0]) == _structure(layer):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return runs


def _structure(layer: _Layer) -> object:
    return layer.number is None, [(i.op, _shapes(i.outputs), [_short(name) for name in i.weights]) for i in layer.instrs]


def _line(same: Sequence[Instr], formats: Mapping[str, str], sizes: Mapping[str, int]) -> str:
    first = same[0]
    weights = [_weight(names, formats) for names in zip(*(instr.weights for instr in same), strict=True)]
    total = sum(sizes.get(name, 0) for instr in same for name in instr.weights)
    attrs = [_attribute(key, [instr.attrs[key] for instr in same]) for key in first.attrs if key not in _IMPLIED]
    listed = ", ".join(weights).replace(", +", " +")
    details = "  ".join(part for part in (listed, " ".join(filter(None, attrs))) if part)
    size = f"  [{_bytes(total)}]" if total else ""
    return f"{first.op:<13}{_shapes(first.outputs):<24}{details}{size}".rstrip()


def _weight(names: Sequence[str], formats: Mapping[str, str]) -> str:
    if names[0].endswith(".bias"):
        return "+bias"
    found = Counter(formats[name] for name in names if name in formats)
    return f"{_short(names[0])} {_counted(found, len(names))}".rstrip()


def _attribute(key: str, values: Sequence[object]) -> str:
    shown = Counter(_shown(key, value) for value in values)
    del shown[""]
    text = _counted(shown, len(values))
    return f"{key} {text}" if text and key != "rope" else text


def _shown(key: str, value: object) -> str:
    if isinstance(value, RopeSpec):
        magnitude = "" if value.magnitude == 1 else f" ×{value.magnitude:.3g}"
        return f"{value.dim} dims down to {value.inverse_frequencies[-1]:.3g}{magnitude}"
    if key == "scale":
        return f"{value:.4g}"
    return "" if value is None else str(value)


def _counted(found: Counter[str], total: int) -> str:
    """ "Q4_K", or "Q4_K ×20 Q6_K ×8" where it varies."""
    if len(found) == 1 and sum(found.values()) == total:
        return next(iter(found))
    return " ".join(f"{name} ×{count}" for name, count in found.most_common())


def _short(name: str) -> str:
    inside = _LAYER.split(name)[-1].removesuffix(".weight")
    return re.sub(r"^(self_attn|mlp)\.", "", inside)


def _shapes(values: Sequence[Value]) -> str:
    widths = "+".join(str(value.width) for value in values)
    if len({value.width for value in values}) == 1 and len(values) > 1:
        widths = f"{len(values)}×{values[0].width}"
    return f"[{values[0].rows}, {widths}]"


def _bytes(count: int) -> str:
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"
