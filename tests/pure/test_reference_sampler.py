"""What sampling parameters mean, on the reference."""

import dataclasses

import numpy as np
import pytest

from tuili.backends.base import SamplingBatch
from tuili.backends.reference.sampler import NO_TOKEN, adjust, greedy, gumbel_noise, keep, sample


def batch(rows: int = 1, **fields: object) -> SamplingBatch:
    """A greedy batch with fields replaced; numbers are repeated for every row."""
    base = greedy(rows)
    filled = {}
    for name, value in fields.items():
        old = getattr(base, name)
        filled[name] = np.full(rows, value, old.dtype) if np.isscalar(value) else np.array(value, old.dtype)
    return dataclasses.replace(base, **filled)


LOGITS = np.array([[0.5, 2.0, -1.0, 2.0, 1.0]], np.float32)


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    assert sample(LOGITS, batch()).token_ids.tolist() == [1]


def test_penalties_give_the_exact_vector() -> None:
    """D-SAMP-4: presence and frequency look at generated tokens, repetition at prompt and generated ones."""
    logits = np.array([1.0, -1.0, 2.0, 0.0, 3.0, 4.0, -2.0, 2.5, 0.5, 1.5], np.float32)
    # prompt 5, 5, 7; generated 7, 9, 9
    fields = {"penalty_start": [0, 3], "penalty_ids": [5, 7, 9], "penalty_counts": [0, 1, 2]}
    got = adjust(logits, batch(presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.3, **fields), 0)
    expected = logits.copy()
    r = np.float32(1.3)
    expected[5] = logits[5] / r
    expected[7] = logits[7] / r - np.float32(0.5) - 1
    expected[9] = logits[9] / r - 1 - 1
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    negative = adjust(-logits, batch(repetition_penalty=1.3, **fields), 0)
    np.testing.assert_allclose(negative[5], -logits[5] * r, rtol=1e-6)
    assert (adjust(logits, batch(**fields), 0) == logits).all()


@pytest.mark.parametrize("temperature", [1e-3, 1e-4, 1e-5, 1e-6, 1e-30])
def test_small_temperatures_approach_greedy(temperature: float) -> None:
    """D-SAMP-2"""
    logits = np.random.default_rng(0).standard_normal((20, 1000)).astype(np.float32) * 10
    cold = sample(logits, batch(20, temperature=temperature, seed=np.arange(20)))
    assert (cold.token_ids == logits.argmax(1)).all()
    assert (sample(logits, batch(20, temperature=1.0, top_p=0.0)).token_ids == logits.argmax(1)).all()


def test_draws_follow_the_softmax() -> None:
    rows = 20_000
    logits = np.tile(LOGITS, (rows, 1))
    drawn = sample(logits, batch(rows, temperature=0.7, position=np.arange(rows), seed=9)).token_ids
    p = np.exp(LOGITS[0] / 0.7)
    expected = rows * p / p.sum()
    counts = np.bincount(drawn, minlength=5)
    assert ((counts - expected) ** 2 / expected).sum() < 18.5  # chi-square, 4 degrees of freedom: 99.9 %


def test_noise_depends_on_every_part_of_its_key_and_on_nothing_else() -> None:
    ids = np.arange(100)
    base = gumbel_noise(1, 2, 3, ids)
    np.testing.assert_array_equal(base[40:], gumbel_noise(1, 2, 3, ids[40:]))
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert not np.isclose(gumbel_noise(*other, ids), base).any()
    assert gumbel_noise(2**64 - 1, 2**31 - 1, 2**31 - 1, ids).shape == (100,)


def test_filters_keep_what_they_say() -> None:
    scaled = np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15]))
    assert keep(scaled, 2, 1.0, 0.0).tolist() == [1, 3]
    assert keep(scaled, 0, 0.69, 0.0).tolist() == [1, 3]
    assert keep(scaled, 0, 0.71, 0.0).tolist() == [1, 3, 4]
    assert keep(scaled, 0, 1e-6, 0.0).tolist() == [1]
    assert keep(scaled, 0, 1.0, 0.3).tolist() == [1, 3, 4]
    assert keep(scaled, 3, 0.5, 0.0).tolist() == [1, 3]  # 0.4 of 0.85 is below one half: top-p counts what top-k left


def test_allowed_ids_and_bias() -> None:
    assert sample(LOGITS, batch(allowed_start=[0, 2], allowed_ids=[2, 0])).token_ids.tolist() == [0]
    bias = {"bias_start": [0, 2], "bias_ids": [2, 1], "bias_values": [100.0, -np.inf]}
    assert sample(LOGITS, batch(**bias)).token_ids.tolist() == [2]
    banned = {"bias_start": [0, 5], "bias_ids": [0, 1, 2, 3, 4], "bias_values": [-np.inf] * 5}
    assert sample(LOGITS, batch(temperature=1.0, **banned)).token_ids.tolist() == [NO_TOKEN]


def test_logprobs_are_those_of_the_raw_logits() -> None:
    fields = {"bias_start": [0, 1], "bias_ids": [4], "bias_values": [50.0]}
    result = sample(LOGITS, batch(num_logprobs=3, **fields))
    expected = LOGITS[0] - np.log(np.exp(LOGITS[0]).sum())
    assert result.token_ids.tolist() == [4]
    np.testing.assert_allclose(result.logprobs, expected[[4]], rtol=1e-6)
    assert result.top_ids.tolist() == [[1, 3, 4]]
    np.testing.assert_allclose(result.top_logprobs[0], expected[[1, 3, 4]], rtol=1e-6)


def test_a_target_is_scored_not_sampled() -> None:
    result = sample(LOGITS, batch(target=2, num_logprobs=0))
    assert result.token_ids.tolist() == [2]
    assert result.logprobs[0] < -2


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_logits_give_no_token_and_spare_the_neighbours(bad: float) -> None:
    logits = np.concatenate([LOGITS, LOGITS])
    logits[0, 3] = bad
    assert sample(logits, batch(2, temperature=1.0, top_k=1)).token_ids.tolist() == [NO_TOKEN, 1]
