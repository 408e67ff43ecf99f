"""Every op in NumPy, float32: slow, short, and the definition that other backends are tested against.

Pure functions first, one an op; ``attention`` and ``embed`` take what they need of the step. ``FUNCTIONS`` at the end adapts
them to one signature for the executor: ``(call) -> one array per output``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tuili.backends.base import F32, I32, StepInput
from tuili.program.program import BLOCK_SIZE, RopeSpec

F16 = npt.NDArray[np.float16]

#: Query rows attended at once: bounds the memory of the score matrix.
_QUERY_TILE = 256


def linear(x: F32, weight: F32, bias: F32 | None = None) -> F32:
    """[rows, K] × [N, K] -> [rows, N]"""
    out = x @ weight.T
    return out if bias is None else out + bias


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """Each run of len(weight) columns divided by its root mean square."""
    groups = x.reshape(x.shape[0], x.shape[1] // weight.shape[0], weight.shape[0]).astype(np.float64)
    scale = 1.0 / np.sqrt(np.mean(groups * groups, axis=-1, keepdims=True) + eps)
    return (groups * scale * weight).astype(np.float32).reshape(x.shape)


def layer_norm(x: F32, scale: F32, shift: F32 | None, eps: float) -> F32:
    groups = x.reshape(x.shape[0], x.shape[1] // scale.shape[0], scale.shape[0]).astype(np.float64)
    centred = groups - groups.mean(axis=-1, keepdims=True)
    normed = centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + eps) * scale
    shifted = normed if shift is None else normed + shift
    return shifted.astype(np.float32).reshape(x.shape)


def rope(x: F32, positions: I32, spec: RopeSpec, head_dim: int) -> F32:
    """Rotate dimension i of a head with dimension i + dim / 2, by position × inverse frequency."""
    angles = positions.astype(np.float64)[:, None] * np.array(spec.inverse_frequencies)
    cos = (np.cos(angles) * spec.magnitude).astype(np.float32)[:, None, :]
    sin = (np.sin(angles) * spec.magnitude).astype(np.float32)[:, None, :]
    heads = x.reshape(x.shape[0], -1, head_dim)
    half = spec.dim // 2
    left, right = heads[..., :half], heads[..., half : spec.dim]
    rotated = [left * cos - right * sin, right * cos + left * sin, heads[..., spec.dim :]]
    return np.concatenate(rotated, axis=-1).astype(np.float32, copy=False).reshape(x.shape)


def activation(x: F32, name: str) -> F32:
    """silu, gelu (exact) or gelu_tanh."""
    wide = x.astype(np.float64)
    if name == "silu":
        out = wide / (1.0 + np.exp(-np.maximum(wide, -700.0)))
    elif name == "gelu_tanh":
        out = 0.5 * wide * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (wide + 0.044715 * wide**3)))
    elif name == "gelu":
        out = 0.5 * wide * (1.0 + np.vectorize(math.erf, otypes=[np.float64])(wide / math.sqrt(2.0)))
    else:
        raise ValueError(f"unknown activation {name!r}")
    return out.astype(np.float32)


def act_mul(gate: F32, up: F32, act: str) -> F32:
    return activation(gate, act) * up


def softcap(x: F32, cap: float) -> F32:
    return (cap * np.tanh(x.astype(np.float64) / cap)).astype(np.float32)


def softmax(x: F32) -> F32:
    """Over the last axis."""
    exps = np.exp(x - x.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True)


def moe_route(logits: F32, top_k: int, *, normalise: bool, scoring: str) -> F32:
    """[rows, E] -> [rows, 2 * top_k]: the weights of the chosen experts, best first, then their ids. Ties: the lower id."""
    scores = softmax(logits) if scoring == "softmax" else (1.0 / (1.0 + np.exp(-logits.astype(np.float64)))).astype(np.float32)
    ids = np.argsort(-scores, axis=-1, kind="stable")[:, :top_k]
    weights = np.take_along_axis(scores, ids, axis=-1)
    if normalise:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return np.concatenate([weights, ids.astype(np.float32)], axis=-1)


def routing_ids(routing: F32) -> I32:
    """The expert ids [rows, top_k] that travel with a routing value."""
    return routing[:, routing.shape[1] // 2 :].astype(np.int32)


def moe_linear(x: F32, routing: F32, weight: F32) -> F32:
    """Row t * top_k + j of the output is token t under its j-th expert."""
    ids = routing_ids(routing)
    top_k = ids.shape[1]
    rows = np.repeat(x, top_k, axis=0) if x.shape[0] == ids.shape[0] else x
    flat = ids.reshape(-1)
    out = np.empty((flat.shape[0], weight.shape[1]), np.float32)
    for expert in np.unique(flat):
        chosen = flat == expert
        out[chosen] = rows[chosen] @ weight[expert].T
    return out


def combine(y: F32, routing: F32) -> F32:
    """Sum the experts' outputs in top-k order."""
    top_k = routing.shape[1] // 2
    parts = y.reshape(routing.shape[0], top_k, -1)
    out = parts[:, 0] * routing[:, :1]
    for j in range(1, top_k):
        out = out + parts[:, j] * routing[:, j : j + 1]
    return out


@dataclass(frozen=True, slots=True)
class KVState:
    """Keys and values [num_blocks * 16, num_kv_heads, head_dim] of one attention layer, f16; ``group``: its state group."""

    keys: F16
    values: F16
    group: int


def attention(q: F32, k: F32, v: F32, state: KVState, step: StepInput, attrs: Mapping[str, Any]) -> F32:
    """Write this step's K and V, then let every query see its sequence's past, itself included, through f16."""
    head_dim, num_kv_heads = attrs["head_dim"], attrs["num_kv_heads"]
    slots = step.slot_mapping[state.group]
    state.keys[slots] = k.reshape(-1, num_kv_heads, head_dim).astype(np.float16)
    state.values[slots] = v.reshape(-1, num_kv_heads, head_dim).astype(np.float16)
    out = np.empty_like(q)
    for sequence, context_len in enumerate(step.context_lens):
        start, end = int(step.query_start[sequence]), int(step.query_start[sequence + 1])
        table = step.block_tables[state.group][sequence]
        for row in range(start, end, _QUERY_TILE):
            stop = min(row + _QUERY_TILE, end)
            first = int(context_len) - end + row
            positions = np.arange(first, first + stop - row)
            out[row:stop] = _attend(q[row:stop], positions, int(context_len), state, table, attrs)
    return out


def _attend(q: F32, positions: npt.NDArray[Any], context_len: int, state: KVState, table: I32, attrs: Mapping[str, Any]) -> F32:
    head_dim, num_kv_heads = attrs["head_dim"], attrs["num_kv_heads"]
    window, cap, causal = attrs["window"], attrs["softcap"], attrs["causal"]
    first = 0 if window is None else max(0, int(positions[0]) - window + 1)
    seen = np.arange(first, int(positions[-1]) + 1 if causal else context_len)
    slots = table[seen // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + seen % BLOCK_SIZE
    keys = state.keys[slots].astype(np.float32).transpose(1, 2, 0)
    values = state.values[slots].astype(np.float32).transpose(1, 0, 2)
    rows = q.shape[0]
    queries = q.reshape(rows, num_kv_heads, -1, head_dim).transpose(1, 2, 0, 3)
    scores = (queries @ keys[:, None]) * np.float32(attrs["scale"])
    if cap is not None:
        scores = softcap(scores, cap)
    distance = positions[:, None] - seen
    hidden = (distance < 0) if causal else np.zeros_like(distance, dtype=bool)
    if window is not None:
        hidden |= distance >= window
    scores[:, :, hidden] = -np.inf
    return (softmax(scores) @ values[:, None]).transpose(2, 0, 1, 3).reshape(rows, -1)


@dataclass(frozen=True, slots=True)
class Call:
    """What a function may read. ``weights`` are decoded, except ``embed``'s, which comes as ``embed_rows``."""

    inputs: Sequence[F32]
    weights: Sequence[F32]
    attrs: Mapping[str, Any]
    step: StepInput
    state: KVState | None
    embed_rows: Callable[[I32], F32]


Function = Callable[[Call], tuple[F32, ...]]


def _linear(c: Call) -> tuple[F32, ...]:
    weights = iter(c.weights)
    return tuple(linear(c.inputs[0], next(weights), next(weights) if bias else None) for bias in c.attrs["biases"])


def _moe_linear(c: Call) -> tuple[F32, ...]:
    return tuple(moe_linear(c.inputs[0], c.inputs[1], weight) for weight in c.weights)


def _attention(c: Call) -> tuple[F32, ...]:
    assert c.state is not None
    return (attention(c.inputs[0], c.inputs[1], c.inputs[2], c.state, c.step, c.attrs),)


def _split(c: Call) -> tuple[F32, ...]:
    edges = np.cumsum(c.attrs["widths"])[:-1]
    return tuple(np.split(c.inputs[0], edges, axis=1))


def _add_rms_norm(c: Call) -> tuple[F32, ...]:
    total = c.inputs[0] + c.inputs[1]
    return total, rms_norm(total, c.weights[0], c.attrs["eps"])


def _gate_up_act(c: Call) -> tuple[F32, ...]:
    gate, up = (linear(c.inputs[0], weight) for weight in c.weights)
    return (act_mul(gate, up, c.attrs["act"]),)


def _layer_norm(c: Call) -> tuple[F32, ...]:
    return (layer_norm(c.inputs[0], c.weights[0], c.weights[1] if c.attrs["shift"] else None, c.attrs["eps"]),)


def _moe_route(c: Call) -> tuple[F32, ...]:
    a = c.attrs
    return (moe_route(c.inputs[0], a["top_k"], normalise=a["normalise"], scoring=a["scoring"]),)


def _rope(c: Call) -> tuple[F32, ...]:
    return (rope(c.inputs[0], c.step.positions[c.attrs["axis"]], c.attrs["rope"], c.attrs["head_dim"]),)


#: all_reduce and all_gather are missing on purpose: they need the other ranks, so the executor answers them.
FUNCTIONS: dict[str, Function] = {
    "embed": lambda c: (c.embed_rows(c.step.token_ids),),
    "linear": _linear,
    "rms_norm": lambda c: (rms_norm(c.inputs[0], c.weights[0], c.attrs["eps"]),),
    "layer_norm": _layer_norm,
    "rope": _rope,
    "attention": _attention,
    "act_mul": lambda c: (act_mul(c.inputs[0], c.inputs[1], c.attrs["act"]),),
    "add": lambda c: (c.inputs[0] + c.inputs[1],),
    "scale": lambda c: (c.inputs[0] * np.float32(c.attrs["factor"]),),
    "softcap": lambda c: (softcap(c.inputs[0], c.attrs["cap"]),),
    "moe_route": _moe_route,
    "moe_linear": _moe_linear,
    "combine": lambda c: (combine(c.inputs[0], c.inputs[1]),),
    "select_rows": lambda c: (c.inputs[0][c.step.logit_rows],),
    "split": _split,
    "concat": lambda c: (np.concatenate(c.inputs, axis=1),),
    "add_rms_norm": _add_rms_norm,
    "gate_up_act": _gate_up_act,
}
