"""The reference functions against the plainest formulas there are: loops, float64, one number at a time."""

import math

import numpy as np
import pytest

from tuili.backends.base import StepInput
from tuili.backends.reference import ops
from tuili.program.program import RopeSpec

RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_linear_is_rows_times_columns_plus_bias() -> None:
    x, w, b = random(3, 8), random(5, 8), random(5)
    expected = [[sum(float(x[r, k]) * float(w[n, k]) for k in range(8)) + float(b[n]) for n in range(5)] for r in range(3)]
    np.testing.assert_allclose(ops.linear(x, w, b), expected, rtol=1e-5)


def test_rms_norm_works_on_each_group() -> None:
    x, w = random(2, 12), random(4)
    out = ops.rms_norm(x, w, 1e-6)
    for r in range(2):
        for g in range(3):
            group = x[r, 4 * g : 4 * g + 4].astype(np.float64)
            root = math.sqrt(sum(v * v for v in group) / 4 + 1e-6)
            np.testing.assert_allclose(out[r, 4 * g : 4 * g + 4], group / root * w, rtol=1e-6)


def test_layer_norm_centres_scales_and_shifts() -> None:
    x, w, b = random(2, 6), random(6), random(6)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(ops.layer_norm(x, w, None, 1e-5), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ops.layer_norm(x, w, b, 1e-5), expected + b, rtol=1e-5, atol=1e-6)


def test_rope_rotates_each_pair_by_its_angle_and_leaves_the_rest() -> None:
    spec = RopeSpec(4, (1.0, 0.25), magnitude=1.5)
    x = random(2, 12)  # two heads of 6, of which 4 dimensions turn
    positions = np.array([3, 1000], np.int32)
    out = ops.rope(x, positions, spec, 6)
    for t in range(2):
        for head in range(2):
            for i in range(2):
                pair = complex(x[t, 6 * head + i], x[t, 6 * head + i + 2])
                turned = pair * 1.5 * np.exp(1j * float(positions[t]) * spec.inverse_frequencies[i])
                np.testing.assert_allclose(out[t, 6 * head + i], turned.real, rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(out[t, 6 * head + i + 2], turned.imag, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(out[t, 6 * head + 4 : 6 * head + 6], x[t, 6 * head + 4 : 6 * head + 6])


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("silu", lambda v: v / (1 + math.exp(-v))),
        ("gelu", lambda v: v * 0.5 * (1 + math.erf(v / math.sqrt(2)))),
        ("gelu_tanh", lambda v: 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))),
    ],
)
def test_activations(name: str, function) -> None:
    x = np.array([[-30.0, -3.0, -0.1, 0.0, 0.5, 4.0, 30.0]], np.float32)
    np.testing.assert_allclose(ops.activation(x, name)[0], [function(float(v)) for v in x[0]], rtol=1e-6, atol=1e-12)


def test_an_activation_of_a_very_negative_number_is_zero_without_a_warning() -> None:
    assert ops.activation(np.array([[-1e30]], np.float32), "silu")[0, 0] == 0


def test_experts_route_multiply_and_combine_like_a_loop_over_tokens() -> None:
    logits, x, weight = random(5, 6), random(5, 4), random(6, 3, 4)
    routing = ops.moe_route(logits, 2, normalise=True, scoring="softmax")
    out = ops.combine(ops.moe_linear(x, routing, weight), routing)
    for t in range(5):
        p = np.exp(logits[t].astype(np.float64))
        p /= p.sum()
        best = sorted(range(6), key=lambda e: -p[e])[:2]
        total = p[best[0]] + p[best[1]]
        expected = sum(p[e] / total * (weight[e].astype(np.float64) @ x[t]) for e in best)
        np.testing.assert_allclose(out[t], expected, rtol=1e-4, atol=1e-5)


def test_routing_gives_a_tie_to_the_lower_expert() -> None:
    routing = ops.moe_route(np.zeros((1, 5), np.float32), 3, normalise=False, scoring="sigmoid")
    assert ops.routing_ids(routing).tolist() == [[0, 1, 2]]
    np.testing.assert_allclose(routing[0, :3], 0.5)


def attention_case(window: int | None, softcap: float | None, causal: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Two sequences in one step, the second with 20 positions in the cache already; ours and the plain formula's output."""
    heads, kv_heads, dim, past, fresh = 4, 2, 8, (0, 20), (19, 5)
    q, k, v = random(24, heads * dim), random(24, kv_heads * dim), random(24, kv_heads * dim)
    state = ops.KVState(np.full((96, kv_heads, dim), np.nan, np.float16), np.full((96, kv_heads, dim), np.nan, np.float16), 0)
    tables = np.array([[4, 1], [3, 0]], np.int32)
    old_k, old_v = random(20, kv_heads, dim), random(20, kv_heads, dim)
    for p in range(20):
        slot = tables[1, p // 16] * 16 + p % 16
        state.keys[slot], state.values[slot] = old_k[p], old_v[p]
    positions = [*range(19), *range(20, 25)]
    slots = [int(tables[0 if t < 19 else 1, p // 16]) * 16 + p % 16 for t, p in enumerate(positions)]
    step = StepInput(
        token_ids=np.zeros(24, np.int32),
        positions=np.array([positions], np.int32),
        query_start=np.array([0, 19, 24], np.int32),
        context_lens=np.array([19, 25], np.int32),
        slot_mapping=[np.array(slots, np.int32)],
        block_tables=[tables],
        logit_rows=np.arange(24, dtype=np.int32),
        adapter_ids=np.zeros(2, np.int32),
    )
    attrs = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": dim, "scale": 0.3}
    attrs |= {"softcap": softcap, "window": window, "causal": causal}
    ours = ops.attention(q, k, v, state, step, attrs)
    keys = [k[:19].reshape(19, kv_heads, dim), np.concatenate([old_k, k[19:].reshape(5, kv_heads, dim)])]
    values = [v[:19].reshape(19, kv_heads, dim), np.concatenate([old_v, v[19:].reshape(5, kv_heads, dim)])]
    expected = np.zeros_like(q, np.float64)
    row = 0
    for s in range(2):
        kf, vf = (part[s].astype(np.float16).astype(np.float64) for part in (keys, values))
        for p in range(past[s], past[s] + fresh[s]):
            low = 0 if window is None else max(0, p - window + 1)
            high = p + 1 if causal else len(kf)
            for h in range(heads):
                query = q[row, h * dim : (h + 1) * dim].astype(np.float64)
                scores = kf[low:high, h // 2] @ query * 0.3
                if softcap:
                    scores = softcap * np.tanh(scores / softcap)
                weights = np.exp(scores - scores.max())
                expected[row, h * dim : (h + 1) * dim] = weights @ vf[low:high, h // 2] / weights.sum()
            row += 1
    return ours, expected


@pytest.mark.parametrize("window", [None, 1, 7, 16, 100])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_attention_sees_its_own_sequence_through_f16(window: int | None, softcap: float | None) -> None:
    ours, expected = attention_case(window, softcap)
    np.testing.assert_allclose(ours, expected, rtol=2e-4, atol=2e-5)


def test_attention_without_a_causal_mask_sees_the_whole_context() -> None:
    ours, expected = attention_case(None, None, causal=False)
    np.testing.assert_allclose(ours, expected, rtol=2e-4, atol=2e-5)


def test_softcap() -> None:
    np.testing.assert_allclose(ops.softcap(np.array([[0.0, 5.0, 1e9]], np.float32), 30.0), [[0, 30 * math.tanh(5 / 30), 30]])
