"""Every architecture's ``tiny()`` against Hugging Face transformers: same weights, same tokens, teacher-forced."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.compare import agreement, cosines
from support.oracle import Oracle, executable, make_oracle, write_gguf
from support.steps import Sequences, limits_for
from tuili.backends.base import Backend
from tuili.backends.cpu.executor import CpuBackend
from tuili.backends.reference.executor import ReferenceBackend
from tuili.models.load import bind, read_model
from tuili.models.registry import architectures
from tuili.quant.registry import FORMATS
from tuili.weights.dummy import dummy_weights
from tuili.weights.gguf import open_gguf

NAMES = sorted(architectures())
LENGTH = 90  # beyond every tiny sliding window


def tiny(name: str) -> dict[str, Any]:
    return architectures()[name].tiny()


def sequences(oracle: Oracle, backend: Backend | None = None, max_model_len: int | None = 128) -> Sequences:
    return Sequences(*executable(oracle, backend or ReferenceBackend(), limits_for, oracle.weights(), max_model_len))


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_transformers(name: str) -> None:
    oracle = make_oracle(tiny(name))
    prompt = oracle.prompt(LENGTH, 1)
    expected = oracle.logits(prompt)
    for backend in (ReferenceBackend(), CpuBackend(threads=1)):
        ours = sequences(oracle, backend).feed({0: prompt})
        assert cosines(expected, ours).min() > 0.9999, backend.name
        found = agreement(expected, ours)
        assert not found.clear_misses and found.share >= 0.97, backend.name


@pytest.mark.parametrize("name", NAMES)
def test_prefill_chunks_and_batches_agree(name: str) -> None:
    oracle = make_oracle(tiny(name), seed=3)
    a, b = oracle.prompt(70, 1), oracle.prompt(41, 2)
    whole = sequences(oracle).feed({0: a})
    for size in (1, 16, 23):
        np.testing.assert_allclose(sequences(oracle).feed_in_chunks(0, a, size), whole, atol=2e-3)
    both = sequences(oracle).feed({0: a, 1: b})
    np.testing.assert_allclose(both[: len(a)], whole, atol=2e-3)
    np.testing.assert_allclose(both[len(a) :], sequences(oracle).feed({0: b}), atol=2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_mixed_step_continues_one_sequence_while_another_starts(name: str) -> None:
    oracle = make_oracle(tiny(name), seed=4)
    a, b = oracle.prompt(50, 1), oracle.prompt(30, 2)
    run = sequences(oracle)
    run.feed({0: a[:49]})
    mixed = run.feed({0: a[49:], 1: b}, all_rows=False)
    expected = np.stack([oracle.logits(a)[-1], oracle.logits(b)[-1]])
    assert cosines(expected, mixed).min() > 0.9999


@pytest.mark.parametrize("fmt", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1"])
@pytest.mark.parametrize("name", NAMES)
def test_gguf_file_equals_transformers(name: str, fmt: str, tmp_path: Path) -> None:
    """Metadata, names, row orders and splits of a file as llama.cpp's converter writes it."""
    oracle = make_oracle(tiny(name), seed=5)
    write_gguf(oracle, tmp_path / "tiny.gguf", lambda tensor, shape: fmt if shape[-1] % 32 == 0 else "F32")
    source = open_gguf(tmp_path / "tiny.gguf")
    model = read_model(source, max_model_len=128)
    assert set(model.formats.values()) >= {fmt}
    assert model.spec.vocab_size == oracle.config["vocab_size"]
    limits = limits_for(model.program)
    run = Sequences(bind(model, source, ReferenceBackend(), limits), model.program, limits)
    prompt = oracle.prompt(LENGTH, 1)
    assert cosines(oracle.logits(prompt), run.feed({0: prompt})).min() > 0.9999


def test_longrope_takes_the_long_factors_for_a_long_context() -> None:
    oracle = make_oracle(tiny("phi3"), seed=6)
    prompt = oracle.prompt(200, 1)
    ours = sequences(oracle, max_model_len=256).feed({0: prompt})
    assert cosines(oracle.logits(prompt), ours).min() > 0.9999
    short = sequences(oracle, max_model_len=128).feed({0: prompt})
    assert cosines(oracle.logits(prompt), short).min() < 0.999


#: Changes that make every row a whole number of 256-element blocks.
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}


@pytest.mark.parametrize("fmt", [name for name, fmt in FORMATS.items() if fmt.block_size > 1])
@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_quantised_weights_equal_transformers_on_their_decoded_values(name: str, fmt: str) -> None:
    oracle = make_oracle(tiny(name) | WIDE | ({"moe_intermediate_size": 256} if name == "qwen3_moe" else {}), seed=8)
    weights = dummy_weights({n: tuple(view.shape) for n, view in oracle.views.items()}, 9, lambda tensor, shape: fmt)
    for tensor, weight in weights.items():
        oracle.set(tensor, weight)
    prompt = oracle.prompt(40, 1)
    expected = oracle.logits(prompt)
    reference = Sequences(*executable(oracle, ReferenceBackend(), limits_for, weights))
    assert cosines(expected, reference.feed({0: prompt})).min() > 0.9999
    # Here activations are rounded to 8 bits too, and a rounding can tip the choice between two experts.
    native = Sequences(*executable(oracle, CpuBackend(threads=1), limits_for, weights)).feed({0: prompt})
    assert np.median(cosines(expected, native)) > 0.998
    assert name == "qwen3_moe" or cosines(expected, native).min() > 0.999
