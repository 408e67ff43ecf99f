"""Random weights: valid blocks of every format, values of the promised size, the same for the same seed."""

import numpy as np
import pytest

from tuili.quant.registry import FORMATS
from tuili.weights.dummy import STD, dummy_weights

SHAPES = {"model.layers.0.mlp.up_proj.weight": (24, 512), "experts": (2, 8, 256), "model.norm.weight": (512,), "q.bias": (512,)}


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_values_are_finite_small_and_centred(name: str) -> None:
    fmt = FORMATS[name]
    weights = dummy_weights(SHAPES, 0, lambda _name, _shape: name)
    for key in ("model.layers.0.mlp.up_proj.weight", "experts"):
        weight = weights[key]
        assert (weight.format, weight.shape) == (name, SHAPES[key])
        assert weight.data.shape == (*SHAPES[key][:-1], fmt.row_bytes(SHAPES[key][-1]))
        values = fmt.decode(weight.data)
        assert np.isfinite(values).all()
        assert STD / 2 < values.std() < 2 * STD
        assert abs(values.mean()) < STD / 4
        assert len(np.unique(values)) > 20


def test_vectors_stay_float_and_norms_near_one() -> None:
    weights = dummy_weights(SHAPES, 0, lambda _name, _shape: "Q4_K")
    norm, bias = (FORMATS["F32"].decode(weights[key].data) for key in ("model.norm.weight", "q.bias"))
    assert norm.shape == bias.shape == (512,)
    assert abs(norm.mean() - 1) < 0.02 and abs(bias.mean()) < 0.02


def test_a_weight_depends_on_seed_and_name_only() -> None:
    def data(seed: int, *names: str) -> list[bytes]:
        weights = dummy_weights(dict.fromkeys(names, (8, 256)), seed, lambda _name, _shape: "Q6_K")
        return [weights[name].data.tobytes() for name in names]

    assert data(0, "a", "b") == data(0, "b", "a")[::-1]
    assert data(0, "a") != data(1, "a")
    assert data(0, "a") != data(0, "b")


def test_rows_that_are_not_whole_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="256"):
        dummy_weights({"w": (2, 64)}, 0, lambda _name, _shape: "Q4_K")
