"""The native sampler against its NumPy twin, and against what the distributions ought to be."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest

from tuili import _native
from tuili.backends.base import SamplingBatch, StepResult
from tuili.backends.reference import sampler as reference
from tuili.backends.reference.sampler import NO_TOKEN, greedy

LEVELS = range(_native.best_isa() + 1)
VOCABS = (5, 97, 4096, 151_936)


def batch(rows: int = 1, **fields: object) -> SamplingBatch:
    """A greedy batch with fields replaced; numbers are repeated for every row."""
    base = greedy(rows)
    filled = {}
    for name, value in fields.items():
        old = getattr(base, name)
        filled[name] = np.full(rows, value, old.dtype) if np.isscalar(value) else np.array(value, old.dtype)
    return dataclasses.replace(base, **filled)


def sample(logits: np.ndarray, sampling: SamplingBatch, level: int = LEVELS[-1]) -> StepResult:
    rows, widest = len(logits), max(0, int(sampling.num_logprobs.max()))
    result = StepResult(
        np.empty(rows, np.int32),
        np.empty(rows, np.float32),
        np.empty((rows, widest), np.int32),
        np.empty((rows, widest), np.float32),
    )
    scratch = logits.astype(np.float32).copy()
    _native.sample_logits(level, scratch, sampling, result.token_ids, result.logprobs, result.top_ids, result.top_logprobs)
    if not len(sampling.masks):  # else what was changed on the way is put back
        np.testing.assert_array_equal(scratch, logits.astype(np.float32))
    return result


def random_logits(rows: int, vocab: int, seed: int = 0) -> np.ndarray:
    """A few likely tokens over a long tail, as models have."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((rows, vocab)).astype(np.float32) * 2
    for row in logits:
        row[rng.integers(0, vocab, 30)] += rng.uniform(2, 12, 30).astype(np.float32)
    return logits


def csr(rows: int, vocab: int, per_row: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts, and distinct ids within each row; every third row has none."""
    rng = np.random.default_rng(seed)
    ids = [rng.choice(vocab, 0 if row % 3 == 2 else min(per_row, vocab), replace=False) for row in range(rows)]
    return np.cumsum([0, *map(len, ids)]), np.concatenate(ids)


PARAMETERS: dict[str, Mapping[str, object]] = {
    "greedy": {},
    "warm": {"temperature": 1.0},
    "hot": {"temperature": 2.5},
    "top_k": {"temperature": 1.3, "top_k": 7},
    "top_k of most": {"temperature": 1.3, "top_k": 90},
    "top_p": {"temperature": 1.1, "top_p": 0.9},
    "top_p of nearly all": {"temperature": 2.0, "top_p": 0.999},
    "min_p": {"temperature": 1.5, "min_p": 0.05},
    "all filters": {"temperature": 1.4, "top_k": 50, "top_p": 0.95, "min_p": 0.02},
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("lists", [False, True], ids=["plain", "with bias, penalties and allowed ids"])
@pytest.mark.parametrize("name", PARAMETERS)
def test_tokens_equal_the_reference(name: str, lists: bool, level: int) -> None:
    for vocab in VOCABS:
        rows = 24 if vocab < 100_000 else 4
        fields: dict[str, object] = {**PARAMETERS[name], "seed": np.arange(rows) * 2**60, "position": 3, "num_logprobs": 5}
        if lists:
            bias_start, bias_ids = csr(rows, vocab, 4, 1)
            penalty_start, penalty_ids = csr(rows, vocab, 9, 2)
            allowed_start, allowed_ids = csr(rows, vocab, 40, 3)
            fields |= {"bias_start": bias_start, "bias_ids": bias_ids, "bias_values": np.linspace(-20, 9, len(bias_ids))}
            fields |= {
                "penalty_start": penalty_start,
                "penalty_ids": penalty_ids,
                "penalty_counts": np.arange(len(penalty_ids)) % 4,
            }
            fields |= {"allowed_start": allowed_start, "allowed_ids": allowed_ids}
            fields |= {"repetition_penalty": 1.3, "presence_penalty": 0.7, "frequency_penalty": -0.4}
        logits, sampling = random_logits(rows, vocab), batch(rows, **fields)
        got, expected = sample(logits, sampling, level), reference.sample(logits, sampling)
        np.testing.assert_array_equal(got.token_ids, expected.token_ids)
        np.testing.assert_array_equal(got.top_ids, expected.top_ids)
        np.testing.assert_allclose(got.logprobs, expected.logprobs, atol=2e-6, rtol=2e-6)
        np.testing.assert_allclose(got.top_logprobs, expected.top_logprobs, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("level", LEVELS)
def test_rows_do_not_depend_on_each_other_or_on_the_level(level: int) -> None:
    logits = random_logits(6, 20_000, 4)
    sampling = batch(6, temperature=1.0, seed=[1, 2, 3, 4, 5, 6], num_logprobs=3)
    together, base = sample(logits, sampling, level), sample(logits, sampling, 0)
    for row in range(6):
        alone = sample(logits[row : row + 1], batch(1, temperature=1.0, seed=row + 1, num_logprobs=3), level)
        assert alone.token_ids[0] == together.token_ids[row] == base.token_ids[row]
        assert alone.logprobs[0] == together.logprobs[row] == base.logprobs[row]
        np.testing.assert_array_equal(alone.top_logprobs[0], base.top_logprobs[row])


def chi_square(drawn: np.ndarray, p: np.ndarray) -> float:
    expected = len(drawn) * p
    seen = np.bincount(drawn, minlength=len(p))
    assert (seen[p == 0] == 0).all()
    kept = p > 0
    return float(((seen[kept] - expected[kept]) ** 2 / expected[kept]).sum())


@pytest.mark.parametrize("name", ["warm", "hot", "top_k", "top_p", "min_p"])
def test_frequencies_follow_the_filtered_softmax(name: str) -> None:
    rows, vocab = 40_000, 40
    parameters = PARAMETERS[name]
    one = np.random.default_rng(8).standard_normal(vocab).astype(np.float32) * 2
    scaled = (one.astype(np.float64) - one.max()) / float(str(parameters["temperature"]))
    kept = reference.keep(scaled, int(str(parameters.get("top_k", 0))), float(str(parameters.get("top_p", 1.0))),
                          float(str(parameters.get("min_p", 0.0))))  # fmt: skip
    p = np.zeros(vocab)
    p[kept] = np.exp(scaled[kept])
    p /= p.sum()
    # Consecutive positions of one seed, consecutive sequences of it, and consecutive seeds: all have to look independent.
    for key in ("position", "sequence", "seed"):
        drawn = sample(np.tile(one, (rows, 1)), batch(rows, **parameters, **{key: np.arange(rows)})).token_ids
        degrees = len(kept) - 1
        assert chi_square(drawn, p) < degrees + 5 * np.sqrt(2 * degrees) + 5


@pytest.mark.parametrize("temperature", [1e-3, 1e-4, 1e-5, 1e-6, 1e-30, 1e-45])
def test_small_temperatures_approach_greedy(temperature: float) -> None:
    """D-SAMP-2"""
    logits = random_logits(20, 3000, 1)
    for fields in ({}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.1}):
        cold = sample(logits, batch(20, temperature=temperature, seed=np.arange(20), num_logprobs=2, **fields))
        np.testing.assert_array_equal(cold.token_ids, logits.argmax(1))
        assert np.isfinite(cold.logprobs).all()
    for top_p in (0.0, 1e-6):
        np.testing.assert_array_equal(sample(logits, batch(20, temperature=1.0, top_p=top_p)).token_ids, logits.argmax(1))


def test_ties_go_to_the_lowest_id() -> None:
    logits = np.zeros((1, 1000), np.float32)
    logits[0, [900, 123, 456]] = 4.0
    result = sample(logits, batch(num_logprobs=5))
    assert result.token_ids[0] == 123
    assert result.top_ids[0].tolist() == [123, 456, 900, 0, 1]
    assert sample(logits, batch(temperature=1.0, top_k=1)).token_ids[0] == 123


def test_penalties_give_the_exact_vector() -> None:
    """D-SAMP-4: presence and frequency look at generated tokens, repetition at prompt and generated ones.

    Prompt 5, 5, 7; generated 7, 9, 9. The order that greedy picks, banning each winner in turn, is that of the penalised logits.
    """
    logits = np.array([1.0, -1.0, 2.0, 0.0, 3.0, 4.0, -2.0, 2.5, 0.5, 1.5], np.float32)
    expected = logits.copy()
    expected[5] = 4.0 / 1.3
    expected[7] = 2.5 / 1.3 - 0.5 - 1.0
    expected[9] = 1.5 / 1.3 - 1.0 - 1.0
    penalties = {"penalty_start": [0, 3], "penalty_ids": [5, 7, 9], "penalty_counts": [0, 1, 2]}
    penalties |= {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.3}
    banned: list[int] = []
    for _ in logits:
        bias = {"bias_start": [0, len(banned)], "bias_ids": banned, "bias_values": [-np.inf] * len(banned)}
        banned.append(int(sample(logits[None], batch(**penalties, **bias)).token_ids[0]))
    assert banned == np.argsort(-expected, kind="stable").tolist()
    nothing = {**penalties, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
    fields = {"temperature": 1.0, "seed": 5, "num_logprobs": 3}
    with_lists, without = sample(logits[None], batch(**nothing, **fields)), sample(logits[None], batch(**fields))
    assert with_lists.token_ids[0] == without.token_ids[0] and with_lists.logprobs[0] == without.logprobs[0]


def test_logprobs_are_those_of_the_model() -> None:
    logits = random_logits(1, 50_000, 2)
    exact = logits[0].astype(np.float64) - np.log(np.exp(logits[0].astype(np.float64)).sum())
    changed = {"temperature": 2.0, "top_k": 3, "bias_start": [0, 1], "bias_ids": [17], "bias_values": [100.0]}
    result = sample(logits, batch(num_logprobs=4, **changed))
    assert result.token_ids[0] == 17
    np.testing.assert_allclose(result.logprobs[0], exact[17], atol=1e-6)
    np.testing.assert_allclose(result.top_logprobs[0], np.sort(exact)[::-1][:4], atol=1e-6)
    target = sample(logits, batch(num_logprobs=0, target=4321))
    assert target.token_ids[0] == 4321
    np.testing.assert_allclose(target.logprobs[0], exact[4321], atol=1e-6)
    assert sample(logits, batch(temperature=1.0)).logprobs[0] == 0.0


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_broken_logits_end_their_row_alone(broken: float) -> None:
    logits = random_logits(3, 333, 3)
    expected = sample(logits, batch(3, temperature=1.0, seed=[1, 2, 3])).token_ids
    logits[1, 332] = broken
    got = sample(logits, batch(3, temperature=1.0, seed=[1, 2, 3])).token_ids
    assert got.tolist() == [expected[0], NO_TOKEN, expected[2]]


def test_everything_banned_is_no_token() -> None:
    logits = np.array([[1.0, 2.0, 3.0]], np.float32)
    ban = {"bias_start": [0, 3], "bias_ids": [0, 1, 2], "bias_values": [-np.inf] * 3}
    for fields in ({}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2}, {"allowed_start": [0, 2], "allowed_ids": [0, 2]}):
        assert sample(logits, batch(**ban, **fields)).token_ids[0] == NO_TOKEN
    impossible = np.full((1, 40), -np.inf, np.float32)
    impossible[0, 7] = 0.0
    for fields in ({}, {"temperature": 9.0}, {"temperature": 9.0, "top_p": 0.99}, {"temperature": 9.0, "top_k": 5}):
        assert sample(impossible, batch(seed=3, **fields)).token_ids[0] == 7


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"bias_start": [0, 1], "bias_ids": [100], "bias_values": [1.0]}, "bias"),
        ({"penalty_start": [0, 1], "penalty_ids": [-1], "penalty_counts": [1]}, "penalty"),
        ({"allowed_start": [0, 1], "allowed_ids": [999_999_999]}, "allowed"),
        ({"target": 100}, "target"),
        ({"allowed_start": [1, 0], "allowed_ids": [0]}, "allowed"),
        ({"bias_start": [0, 5], "bias_ids": [1], "bias_values": [1.0]}, "bias_ids"),
    ],
)
def test_ids_outside_the_vocabulary_never_reach_memory(fields: Mapping[str, object], name: str) -> None:
    """D-SAMP-1, the last line of defence: requests are refused long before."""
    with pytest.raises(ValueError, match=name):
        sample(np.zeros((1, 100), np.float32), batch(**fields))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("share", [0.001, 0.5, 0.99])
@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0}, {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01}])
def test_masks_agree_with_the_reference(level: int, vocab: int, share: float, fields: Mapping[str, object]) -> None:
    """Half of the rows have a mask, one of them an empty one; log-probabilities stay those of the raw logits."""
    rows, words = 8, -(-vocab // 32)
    rng = np.random.default_rng(vocab)
    allowed = rng.random((4, 32 * words)) < share
    allowed[3] = False
    masks = np.packbits(allowed, axis=1, bitorder="little").view(np.uint32)
    logits = random_logits(rows, vocab)
    sampling = batch(rows, seed=np.arange(rows), num_logprobs=2, mask_index=[-1, 0, -1, 1, -1, 2, -1, 3], **fields)
    sampling = dataclasses.replace(sampling, masks=masks)
    got, expected = sample(logits, sampling, level), reference.sample(logits, sampling)
    np.testing.assert_array_equal(got.token_ids, expected.token_ids)
    np.testing.assert_allclose(got.logprobs, expected.logprobs, atol=1e-4)
    assert got.token_ids[7] == NO_TOKEN
    for row, mask in ((1, 0), (3, 1), (5, 2)):
        assert got.token_ids[row] == NO_TOKEN or allowed[mask, got.token_ids[row]]


def test_what_lies_beyond_a_mask_is_banned_and_a_missing_mask_is_refused() -> None:
    logits = np.arange(40, dtype=np.float32)[None]
    sampling = dataclasses.replace(batch(mask_index=0), masks=np.full((1, 1), 2**32 - 1, np.uint32))
    assert sample(logits, sampling).token_ids.tolist() == [31]
    with pytest.raises(ValueError, match="mask_index"):
        sample(logits, dataclasses.replace(sampling, mask_index=np.array([1], np.int32)))
